"""What each pair must reach. A measure asks for its target by name; one without a target is a plain figure."""

from .report import Target

PROVENANCE = Target(1.05, "≤ 1.05")
DIFF = Target(1 / 5, "≤ 1/5")
SMALL, NO_SLOWER, LESS = Target(2000, "≤ 2 KB", "figure"), Target(1, "no slower"), Target(1, "less")

SQLITE = {
    "stored": Target(1 / 200, "≤ 1/200"),
    "stored, beside DeltaChannel": LESS,
    "written": Target(1 / 100, "≤ 1/100"),
    "stored, over that at half": Target(2.1, "≤ 2.1 ×", "figure"),
    "put": Target(1 / 4, "≤ 1/4"),
    "get_tuple": Target(0.6, "≤ 0.6"),
    "list(limit=10)": Target(1 / 5, "≤ 1/5"),
    "turn": Target(1 / 3, "≤ 1/3"),
    "turn, beside InMemorySaver": LESS,
    "dict: stored": SMALL,
    "dict: put": NO_SLOWER,
    "channels: stored": Target(5000, "≤ 5 KB", "figure"),
    "fork": Target(5000, "≤ 5 KB", "figure"),
    "threads": Target(2, "≥ 2", at_least=True),
    "memory": Target(64_000, "no more", "figure"),
    "ledger: hit": Target(1, "< 1 ms", "figure"),
    "provenance": PROVENANCE,
    "diff": DIFF,
}

POSTGRES = {
    "stored": Target(1 / 50, "≤ 1/50"),
    "stored, beside DeltaChannel": LESS,
    "written": Target(1 / 50, "≤ 1/50"),
    "put": Target(1 / 10, "≤ 1/10"),
    "get_tuple": Target(1 / 2, "≤ 0.5"),
    "list(limit=10)": Target(1 / 5, "≤ 1/5"),
    "turn": Target(1 / 3, "≤ 1/3"),
    "threads": Target(2, "≥ 2", at_least=True),
    "prune": Target(1 / 5, "≤ 1/5"),
    "provenance": PROVENANCE,
    "diff": DIFF,
}

REDIS = {
    "ledger: hit": Target(3, "≤ 3"),
    "request": Target(2, "≤ 2"),
    "footprint": Target(2, "≤ 2"),
    "provenance": PROVENANCE,
    "diff": DIFF,
}

FILES = {
    "log": Target(1.5, "≤ 1.5"),
    "append": Target(2, "≤ 2"),
    "roots: one": Target(1.5, "≤ 1.5"),
    "roots: all": Target(12, "≤ 12"),
    "provenance": PROVENANCE,
    "diff": DIFF,
}
