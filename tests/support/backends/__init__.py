"""Helpers for the tests of single backends."""
