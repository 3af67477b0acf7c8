"""Helpers for the tests of retention and erasure."""
