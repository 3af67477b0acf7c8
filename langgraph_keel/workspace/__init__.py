"""The files of an agent, saved beside the checkpoints of its thread in a shadow git repository."""
