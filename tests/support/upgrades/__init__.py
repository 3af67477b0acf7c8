"""Helpers for the tests of upgrades."""
