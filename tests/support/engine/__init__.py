"""Helpers for the tests of the engine and its serializer."""
