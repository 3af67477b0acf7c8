"""What stays of a thread, and how the rest goes: policies, prune, sweep, erasure."""
