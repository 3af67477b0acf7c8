"""Compare Keel with LangGraph's own savers and print ratios: `python -m tests.benchmarks`."""
