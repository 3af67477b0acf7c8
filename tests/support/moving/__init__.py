"""Helpers of the tests of copying and importing."""
