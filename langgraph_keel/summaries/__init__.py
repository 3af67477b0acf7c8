"""Summaries: removes, archives and restores old messages of a conversation."""
