"""The public surface of the package, as data."""
