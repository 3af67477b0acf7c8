"""The semantics of Keel, independent of backends: no I/O, client library, clock or randomness."""
