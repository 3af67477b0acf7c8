"""Copies threads between stores, imports and exports them, and measures stores."""
