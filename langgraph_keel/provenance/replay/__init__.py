"""Replays: a thread is run again and compared with its record."""
