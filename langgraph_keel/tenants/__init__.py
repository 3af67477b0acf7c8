"""Tenants: views of one store that contain only one customer's threads."""
