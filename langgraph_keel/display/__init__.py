"""What people and programs wrote, made safe to show: as text, JSON and HTML."""
