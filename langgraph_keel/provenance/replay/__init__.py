"""A thread run once more, and compared with what it was."""
