-- A store that a Keel without cells has made lacks what is below; opening the store adds it. Rows are replaced by
-- whoever knows their token. Cells that all threads share are under the empty thread_id, so in one partition.

CREATE TABLE {cells} (
    thread_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,        -- names what the cell holds now
    origin text COLLATE "C",                -- the thread that wrote it, NULL if none did
    name text,                              -- the origin itself, where origin is only a key of it
    expires_at bigint,                      -- milliseconds since 1970; only the engine reads it
    header bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (thread_id, kind, key)
){partitioned};
-- What a thread has shared is deleted with it: one entry for each shared cell, for one look at each deletion.
CREATE INDEX {cells_by_origin} ON {cells} (origin) WHERE thread_id = '' AND origin IS NOT NULL;

ALTER TABLE {cells} ALTER COLUMN header SET STORAGE EXTERNAL;
ALTER TABLE {cells} ALTER COLUMN body SET STORAGE EXTERNAL;
