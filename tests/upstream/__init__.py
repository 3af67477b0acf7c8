"""LangGraph's own tests with Keel's savers: `suite` fetches and runs them.

`plugin` replaces the savers.
"""
