"""How moments and diffs look: in a terminal, in a notebook, as pictures."""
