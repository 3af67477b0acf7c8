"""Tenants: views of one store in which only one customer's threads exist."""
