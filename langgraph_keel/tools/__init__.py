"""The ledger of tool calls, and LangGraph's node cache, on every backend."""
