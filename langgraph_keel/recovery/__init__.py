"""Recovery: threads that no process runs any more are continued."""
