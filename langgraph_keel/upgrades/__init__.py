"""Upgrades: newer versions of an application read threads of older ones."""
