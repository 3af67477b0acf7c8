"""Helpers of the tests of approvals."""
