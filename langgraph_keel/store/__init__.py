"""A LangGraph store: items that all threads share, in cells."""
