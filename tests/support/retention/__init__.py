"""Helpers of the tests of retention and erasure."""
