"""Threads from one store to another, as files, of LangGraph's own savers in and out; and where the bytes are."""
