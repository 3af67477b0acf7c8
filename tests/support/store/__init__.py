"""Helpers of the tests of stores."""
