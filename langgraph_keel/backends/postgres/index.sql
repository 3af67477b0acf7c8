-- What lists of threads are narrowed by. A thread without `marks` is always looked at.
ALTER TABLE {threads}
    ADD COLUMN IF NOT EXISTS head bigint,   -- the sequence number of the root entry that `marks` are of
    ADD COLUMN IF NOT EXISTS marks text,    -- what the thread can be found by (engine/entries.py), with a space between
    ADD COLUMN IF NOT EXISTS late_of text,  -- the ids of the checkpoints that `late` are of
    ADD COLUMN IF NOT EXISTS late text;     -- what tasks have added that have written to them
