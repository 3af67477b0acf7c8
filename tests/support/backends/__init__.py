"""Helpers of the tests of single backends."""
