-- Format 1. A key of 64 bits is two numbers: who it belongs to in the upper half, its place in the lower, so that the
-- entries of a thread and the items of a channel each stand together, in order, in one B-tree without an index. Nothing
-- that a put does changes a row: it appends to a few trees. (An UPDATE of a counter would write one more page each time.)
-- Ids come from AUTOINCREMENT: they are never used again, so a stale memo can never take a new thread for an old one.

CREATE TABLE threads (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    floor INTEGER NOT NULL DEFAULT 0        -- sequence numbers up to here were used, also where their entries are gone
);

CREATE TABLE namespaces (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    thread INTEGER NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (thread, name)
);

CREATE TABLE channels (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace INTEGER NOT NULL,
    slot INTEGER NOT NULL,                  -- what refs call it; kept by copies
    name TEXT NOT NULL,
    floor INTEGER NOT NULL DEFAULT 0,       -- item numbers below were used, also where their rows are gone
    UNIQUE (namespace, name)
);

CREATE TABLE entries (
    key INTEGER PRIMARY KEY,                -- thread << 32 | sequence number
    namespace INTEGER NOT NULL,
    nested INTEGER NOT NULL,                -- 0 in the root namespace, 1 in those of subgraphs
    state INTEGER NOT NULL,                 -- 0 trunk, 1 branch kept by on_conflict='fork', 2 ghost
    id TEXT NOT NULL,
    mark INTEGER NOT NULL,                  -- the beginning of the id, for the index
    parent,                                 -- INTEGER: its sequence number; TEXT: its id, if it was not there
    run TEXT,
    put_at TEXT NOT NULL,                   -- ISO time
    refs BLOB NOT NULL,                     -- framed msgpack [[slot, kind, lo, hi, lo, hi, ...], ...]
    header BLOB NOT NULL                    -- core/headers.py
);
CREATE INDEX entries_by_mark ON entries (mark);
CREATE INDEX entries_of_subgraphs ON entries (namespace) WHERE nested;
CREATE INDEX entries_by_run ON entries (run) WHERE run IS NOT NULL;

CREATE TABLE items (
    key INTEGER PRIMARY KEY,                -- channel << 32 | number of the first item
    count INTEGER NOT NULL,
    body BLOB NOT NULL                      -- core/rows.py
);

CREATE TABLE batches (
    key INTEGER PRIMARY KEY,                -- in the order of arrival
    namespace INTEGER NOT NULL,
    checkpoint TEXT NOT NULL,               -- may arrive later than its writes
    mark INTEGER NOT NULL,                  -- the beginning of its id, for the index
    task TEXT NOT NULL,
    path TEXT NOT NULL,
    body BLOB NOT NULL                      -- core/writes.py
);
CREATE INDEX batches_by_mark ON batches (namespace, mark);
