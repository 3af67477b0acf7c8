-- Format 1. A 64-bit key is two numbers: the owner in the upper half, the position in the lower. So the entries of a
-- thread and the items of a channel are stored together and in order, in one B-tree without an index. A write changes
-- no rows: it appends to a few trees. (An UPDATE of a counter would write one more page each time.)
-- Ids come from AUTOINCREMENT and are never reused, so a stale memo never confuses a new thread with an old one.

CREATE TABLE IF NOT EXISTS threads (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    floor INTEGER NOT NULL DEFAULT 0        -- sequence numbers up to here were used, also where their entries are gone
);

CREATE TABLE IF NOT EXISTS namespaces (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    thread INTEGER NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (thread, name)
);

CREATE TABLE IF NOT EXISTS channels (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace INTEGER NOT NULL,
    slot INTEGER NOT NULL,                  -- what refs call it; kept by copies
    name TEXT NOT NULL,
    floor INTEGER NOT NULL DEFAULT 0,       -- item numbers below were used, also where their rows are gone
    UNIQUE (namespace, name)
);

CREATE TABLE IF NOT EXISTS entries (
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
    header BLOB NOT NULL                    -- engine/entries.py
);
CREATE INDEX IF NOT EXISTS entries_by_mark ON entries (mark);
CREATE INDEX IF NOT EXISTS entries_of_subgraphs ON entries (namespace) WHERE nested;
CREATE INDEX IF NOT EXISTS entries_by_run ON entries (run) WHERE run IS NOT NULL;

-- The index for lists of threads. It may be dropped, and is rebuilt when the store is opened. A write changes its row
-- only if the search terms of the thread change or ten seconds have passed: writing one more page took a twentieth of
-- the time of a write.
CREATE TABLE IF NOT EXISTS thread_index (
    thread INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    put_at TEXT,                            -- of a put in the same ten seconds as the last one; NULL if there is none
    marks TEXT,                             -- what it can be found by (engine/entries.py), with a space between; a thread
                                            -- without marks is always looked at
    late_of TEXT,                           -- the ids of the checkpoints that `late` are of, with a space between
    late TEXT                               -- what tasks have added that have written to them
);
CREATE INDEX IF NOT EXISTS thread_index_by_time ON thread_index (put_at);

CREATE TABLE IF NOT EXISTS items (
    key INTEGER PRIMARY KEY,                -- channel << 32 | number of the first item
    count INTEGER NOT NULL,
    body BLOB NOT NULL                      -- engine/encoding/bodies.py
);

CREATE TABLE IF NOT EXISTS batches (
    key INTEGER PRIMARY KEY,                -- in the order of arrival
    namespace INTEGER NOT NULL,
    checkpoint TEXT NOT NULL,               -- may arrive later than its writes
    mark INTEGER NOT NULL,                  -- the beginning of its id, for the index
    task TEXT NOT NULL,
    path TEXT NOT NULL,
    body BLOB NOT NULL                      -- engine/entries.py
);
CREATE INDEX IF NOT EXISTS batches_by_mark ON batches (namespace, mark);

-- Tables with rowids, and the body last, so that a listing reads no bodies. WITHOUT ROWID, SQLite reads whole rows:
-- with bodies of 20 KB a listing took 1.4 ms instead of 0.14, and a hit 0.17 ms instead of 0.03. An index entry with
-- the names of a thread and a key would exceed the 102 bytes that fit in a page: 1.2 KB per cell instead of 0.6.
CREATE TABLE IF NOT EXISTS shelves (
    id INTEGER PRIMARY KEY,
    thread TEXT NOT NULL,                   -- its name, for it need not be there; '' for what all threads share
    kind TEXT NOT NULL,
    UNIQUE (thread, kind)
);

CREATE TABLE IF NOT EXISTS cells (
    id INTEGER PRIMARY KEY,
    shelf INTEGER NOT NULL,
    key TEXT NOT NULL,
    token TEXT NOT NULL,
    origin TEXT,                            -- the name of the thread that shares it
    expires_at INTEGER,                     -- milliseconds since 1970
    rank INTEGER,                           -- microseconds since 1970, of what is searched: its last change
    marks TEXT,                             -- what it can be found by, with a space between
    header BLOB NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (shelf, key)
);
-- By the first two of a key's four blocks (after the tenant's name, if any). Of 10,000 cells, the newest ten took 0.02
-- ms with this index, and 3 to 10 ms without. Cells without a rank are not indexed.
CREATE INDEX IF NOT EXISTS cells_by_rank ON cells (shelf, substr(key, 1, length(key) - 64), rank DESC)
    WHERE rank IS NOT NULL;
CREATE INDEX IF NOT EXISTS cells_by_origin ON cells (origin) WHERE origin IS NOT NULL;
