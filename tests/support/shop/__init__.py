"""An application whose classes its readers cannot import."""
