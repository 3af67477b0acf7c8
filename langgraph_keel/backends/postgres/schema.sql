-- Format 1. thread_id is in every key, so that the tables may be hash partitioned or distributed by it. Rows are
-- immutable, except keel_threads (one row per thread; each write compares and sets its sequence number) and entries
-- that become ghosts or are stored again. Text sorts by bytes, as in every other store. Ids are stored as given, or
-- as their `rows.key`.

CREATE TABLE {threads} (
    thread_id text COLLATE "C" PRIMARY KEY,
    epoch bigint NOT NULL,                  -- random name of this life of the thread, never reused
    seq bigint NOT NULL,                    -- last sequence number used
    basis bigint NOT NULL,                  -- the epoch read by the write that inserted this row, 0 for none
    put_at text COLLATE "C" NOT NULL,       -- ISO time of the newest entry
    name text,                              -- the thread id, if thread_id is only a key of it
    -- Search terms for lists of threads. A search always reads a thread without `marks`.
    head bigint,                            -- sequence number of the root entry of `marks`
    marks text,                             -- search terms (engine/entries.py), separated by spaces
    late_of text,                           -- latest checkpoint to which tasks have written
    late text                               -- search terms that these tasks have added
) WITH (fillfactor = 70);

CREATE TABLE {entries} (
    thread_id text COLLATE "C" NOT NULL,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    token bigint NOT NULL,                  -- of the request that stored it, to recognize a repeat
    state smallint NOT NULL,                -- 0 trunk, 1 branch kept by on_conflict='fork', 2 ghost
    parent text COLLATE "C",
    run_id text COLLATE "C",
    put_at text COLLATE "C" NOT NULL,       -- ISO time
    channels text[] NOT NULL,               -- names, in the order of the checkpoint
    kinds text NOT NULL,                    -- records.Kind of each, a digit
    owners integer[] NOT NULL,              -- per run: position of its channel
    los integer[] NOT NULL,                 -- per run: first item
    his integer[] NOT NULL,                 -- per run: item after the last
    kept text[],                            -- of a ghost: channels it is needed for
    names text[],                           -- names of keys in this row that differ from their names
    header bytea NOT NULL,                  -- engine/entries.py
    PRIMARY KEY (id, thread_id, ns)
){partitioned};
-- Both conditions are always true. A statement that repeats one can use that index, others only the primary key.
-- Without them the planner chose either of two indexes with the same first column, and read a whole thread to find one
-- entry unless statistics showed that a thread has thousands.
CREATE INDEX {entries_by_ns} ON {entries} (thread_id, ns, seq) WHERE kinds >= '';
CREATE INDEX {entries_by_seq} ON {entries} (thread_id, seq) WHERE put_at >= '';
CREATE INDEX {entries_by_run} ON {entries} (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE {items} (
    thread_id text COLLATE "C" NOT NULL,
    ns text COLLATE "C" NOT NULL,
    channel text COLLATE "C" NOT NULL,
    lo integer NOT NULL,                    -- number of the first item
    count integer NOT NULL,
    body bytea NOT NULL,                    -- engine/encoding/bodies.py
    PRIMARY KEY (thread_id, ns, channel, lo, count)
){partitioned};

CREATE TABLE {floors} (                     -- lower item numbers are used, even if their rows are deleted
    thread_id text COLLATE "C" NOT NULL,
    ns text COLLATE "C" NOT NULL,
    channel text COLLATE "C" NOT NULL,
    floor integer NOT NULL,
    PRIMARY KEY (thread_id, ns, channel)
){partitioned};

CREATE TABLE {batches} (
    thread_id text COLLATE "C" NOT NULL,
    ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,  -- may arrive later than its writes
    n integer NOT NULL,                     -- one more than the existing ones; concurrent batches have no order
    token bigint NOT NULL,
    task_id text NOT NULL,
    task_path text NOT NULL,
    body bytea NOT NULL,                    -- engine/entries.py
    PRIMARY KEY (thread_id, ns, checkpoint_id, n, token)
){partitioned};

-- A row is replaced only by a request with its token. Shared cells have the empty thread_id, so they are in one
-- partition.
CREATE TABLE {cells} (
    thread_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,        -- random name of the current content
    origin text COLLATE "C",                -- the thread that wrote it, or NULL
    name text,                              -- the origin, if origin is only a key of it
    expires_at bigint,                      -- milliseconds since 1970; only the engine reads it
    rank bigint,                            -- microseconds since 1970 of the last change, for searches
    marks text,                             -- search terms, separated by spaces
    header bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (thread_id, kind, key)
){partitioned};
-- By the first two of a key's four blocks (after the tenant's name, if any). The newest cells are read in order, also
-- within one rank: without statistics, the planner would sort all. Cells without a rank are not indexed.
CREATE INDEX {cells_by_rank} ON {cells} (thread_id, kind, (left(key, -64)), rank DESC, (right(key, 64)))
    WHERE rank IS NOT NULL;
-- Shared cells are deleted with the thread that wrote them: one index look-up per deletion.
CREATE INDEX {cells_by_origin} ON {cells} (origin) WHERE thread_id = '' AND origin IS NOT NULL;

-- Bodies are already compressed.
ALTER TABLE {entries} ALTER COLUMN header SET STORAGE EXTERNAL;
ALTER TABLE {items} ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {batches} ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {cells} ALTER COLUMN header SET STORAGE EXTERNAL;
ALTER TABLE {cells} ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE {format} (format integer PRIMARY KEY);
INSERT INTO {format} VALUES (1);
