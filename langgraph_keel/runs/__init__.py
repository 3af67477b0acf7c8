"""Runs on a thread: who has it, who waits for it, and workers that continue it."""
