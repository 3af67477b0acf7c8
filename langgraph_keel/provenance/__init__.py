"""Which model wrote a step, with what, and whether it would happen again."""
