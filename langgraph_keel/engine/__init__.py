"""The semantics of Keel, written once: no I/O, no client library, no clock, no randomness of its own."""
