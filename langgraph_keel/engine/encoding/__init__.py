"""How a channel value is stored: what is new of it, and nothing else."""
