"""Approvals: what people are asked and what they have decided, beside the threads that wait for it."""
