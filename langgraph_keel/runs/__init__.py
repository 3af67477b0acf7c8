"""Runs on a thread: claims, waiting lines, and workers that continue threads."""
