"""LangGraph's own tests with Keel's savers: `suite` fetches and runs them, `plugin` swaps the savers in."""
