"""Encryption of all that is stored: keys, how records are sealed, and the store that seals them."""
