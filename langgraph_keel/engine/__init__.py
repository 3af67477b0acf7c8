"""Keel's semantics for all backends, without I/O, client libraries or clocks."""
