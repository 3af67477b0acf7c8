"""Helpers for the tests of approvals."""
