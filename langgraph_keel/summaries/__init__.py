"""Summaries: what takes old messages out of a conversation, keeps them, and puts them back."""
