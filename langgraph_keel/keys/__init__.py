"""Encryption of all stored data: keys, sealing of records, and the sealing store layer."""
