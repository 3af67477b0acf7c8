"""Helpers of the tests of what every backend must do."""
