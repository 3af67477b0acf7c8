"""Approvals: requests to people, and their decisions."""
