"""Large values in objects outside of the store: in a bucket, or in a directory."""
