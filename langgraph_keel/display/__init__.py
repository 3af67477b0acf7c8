"""Display of stored content, made safe to show: as text, JSON and HTML."""
