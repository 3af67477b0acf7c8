"""Helpers of the tests of provenance, replay and trajectories."""
