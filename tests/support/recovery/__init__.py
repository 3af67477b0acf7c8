"""Helpers of the tests of recovery."""
