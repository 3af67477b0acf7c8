"""Keel beside LangGraph's own savers: one run, one table, printed as ratios. `python -m tests.benchmarks`."""
