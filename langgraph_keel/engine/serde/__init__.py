"""Serialization of Python objects, and safe loading of stored bytes."""
