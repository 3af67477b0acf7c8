"""Helpers for the tests of provenance, replay and trajectories."""
