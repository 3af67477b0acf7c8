"""Helpers of the tests of upgrades."""
