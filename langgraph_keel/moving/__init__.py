"""Moving: from LangGraph's own savers to Keel, while people go on, and back."""
