"""Helpers for the tests of the tool ledger."""
