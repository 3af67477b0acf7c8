"""Helpers for the tests of runs."""
