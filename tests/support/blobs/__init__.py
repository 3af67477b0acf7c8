"""Helpers for the tests of values in objects."""
