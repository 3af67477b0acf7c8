"""Helpers of the tests of summaries and archives."""
