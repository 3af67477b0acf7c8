"""Tool results: the ledger of calls, and LangGraph's cache of nodes, on every backend."""
