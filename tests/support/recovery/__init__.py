"""Helpers for the tests of recovery."""
