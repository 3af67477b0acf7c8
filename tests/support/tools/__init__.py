"""Helpers of the tests of the tool ledger."""
