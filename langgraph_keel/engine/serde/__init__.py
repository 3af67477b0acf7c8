"""How Python objects become bytes, and how the bytes that are known become objects again."""
