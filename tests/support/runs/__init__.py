"""Helpers of the tests of runs."""
