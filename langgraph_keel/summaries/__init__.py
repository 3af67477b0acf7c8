"""Summaries: removes old messages from a conversation, archives them, and restores them."""
