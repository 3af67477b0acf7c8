"""Saves the files of an agent with each checkpoint, in a shadow git repository."""
