"""Helpers for the tests of timelines and diffs."""
