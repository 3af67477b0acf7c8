"""A thread as a tree of moments: view, compare, rewind and fork it."""
