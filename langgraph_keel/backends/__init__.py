"""Where checkpoints are stored: a room for each backend. README.md says which one when."""
