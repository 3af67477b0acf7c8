"""Helpers of the tests of the engine and its serializer."""
