"""Storage of channel values: only the changes of a value are stored."""
