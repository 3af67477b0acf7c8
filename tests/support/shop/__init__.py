"""An application whose classes its readers do not have."""
