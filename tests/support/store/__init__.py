"""Helpers for the tests of stores."""
