"""Helpers for the tests of summaries and archives."""
