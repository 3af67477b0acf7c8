"""Helpers for the tests of copying and importing."""
