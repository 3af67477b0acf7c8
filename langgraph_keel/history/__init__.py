"""A thread as a tree of moments: what it was at each, what changed between two, and how to go back."""
