"""Moments and diffs rendered for terminals and notebooks."""
