"""Helpers for the tests of processes that race, die and meet faults."""
