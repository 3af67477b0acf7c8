"""Encryption of all stored data: keys, sealing, and the sealing store layer."""
