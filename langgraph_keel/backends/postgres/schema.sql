-- Format 1. thread_id is in every key, so that the tables may be hash partitioned or distributed by it. Rows are
-- immutable but for keel_threads (one row a thread: its sequence number is what a put compares and sets) and for entries
-- that are made ghosts or put again. Text compares by bytes, as in every other store. Ids are as given, or `keys.key`
-- of them.

CREATE TABLE {threads} (
    thread_id text COLLATE "C" PRIMARY KEY,
    epoch bigint NOT NULL,                  -- names this life of the thread; random, never used again
    seq bigint NOT NULL,                    -- last sequence number used
    basis bigint NOT NULL,                  -- the epoch that the put which inserted this row had read, 0 for none
    put_at text COLLATE "C" NOT NULL,       -- ISO time of the newest entry
    name text,                              -- the thread id itself, where thread_id is only a key of it
    -- What lists of threads are narrowed by. A thread without `marks` is always looked at.
    head bigint,                            -- the sequence number of the root entry that `marks` are of
    marks text,                             -- what the thread can be found by (engine/entries.py), with a space between
    late_of text,                           -- the ids of the checkpoints that `late` are of
    late text                               -- what tasks have added that have written to them
) WITH (fillfactor = 70);

CREATE TABLE {entries} (
    thread_id text COLLATE "C" NOT NULL,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    token bigint NOT NULL,                  -- of the request that stored it: sent again, it is known
    state smallint NOT NULL,                -- 0 trunk, 1 branch kept by on_conflict='fork', 2 ghost
    parent text COLLATE "C",
    run_id text COLLATE "C",
    put_at text COLLATE "C" NOT NULL,       -- ISO time
    channels text[] NOT NULL,               -- names, in the order of the checkpoint
    kinds text NOT NULL,                    -- records.Kind of each, a digit
    owners integer[] NOT NULL,              -- of each run: the position of its channel
    los integer[] NOT NULL,                 -- of each run: its first item
    his integer[] NOT NULL,                 -- of each run: the item after its last
    kept text[],                            -- of a ghost: the channels it is needed for
    names text[],                           -- what the keys in this row stand for, where they are not the names themselves
    header bytea NOT NULL,                  -- engine/entries.py
    PRIMARY KEY (id, thread_id, ns)
){partitioned};
-- Both conditions are always true. A statement that repeats one of them can use that index, and a statement that repeats
-- neither only the primary key: the planner took either of two indexes that begin alike, and so read a whole thread to
-- find one entry, wherever statistics did not say that one thread has thousands.
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

CREATE TABLE {floors} (                     -- item numbers below were used, also where their rows are gone
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
    n integer NOT NULL,                     -- one more than those that were there; what arrives together has no order
    token bigint NOT NULL,
    task_id text NOT NULL,
    task_path text NOT NULL,
    body bytea NOT NULL,                    -- engine/entries.py
    PRIMARY KEY (thread_id, ns, checkpoint_id, n, token)
){partitioned};

-- Rows are replaced by whoever knows their token. Cells that all threads share are under the empty thread_id, so in one
-- partition.
CREATE TABLE {cells} (
    thread_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,        -- names what the cell holds now
    origin text COLLATE "C",                -- the thread that wrote it, NULL if none did
    name text,                              -- the origin itself, where origin is only a key of it
    expires_at bigint,                      -- milliseconds since 1970; only the engine reads it
    rank bigint,                            -- microseconds since 1970, of what is searched: its last change
    marks text,                             -- what it can be found by, with a space between
    header bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (thread_id, kind, key)
){partitioned};
-- By the first two of a key's four blocks, after the name of a tenant if there is one: the newest of a few labels are
-- read in order, also among those of one rank: without statistics, the planner would sort all. Cells without a rank have
-- no entry.
CREATE INDEX {cells_by_rank} ON {cells} (thread_id, kind, (left(key, -64)), rank DESC, (right(key, 64)))
    WHERE rank IS NOT NULL;
-- What a thread has shared is deleted with it: one entry for each shared cell, for one look at each deletion.
CREATE INDEX {cells_by_origin} ON {cells} (origin) WHERE thread_id = '' AND origin IS NOT NULL;

-- Bodies are compressed already.
ALTER TABLE {entries} ALTER COLUMN header SET STORAGE EXTERNAL;
ALTER TABLE {items} ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {batches} ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {cells} ALTER COLUMN header SET STORAGE EXTERNAL;
ALTER TABLE {cells} ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE {format} (format integer PRIMARY KEY);
INSERT INTO {format} VALUES (1);
