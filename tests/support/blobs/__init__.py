"""Helpers of the tests of values in objects."""
