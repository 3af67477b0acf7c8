"""Helpers for the tests of the contract of every backend."""
