"""Helpers of the tests of timelines and diffs."""
