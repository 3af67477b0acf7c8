"""The archive of messages removed from conversations."""
