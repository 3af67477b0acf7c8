"""The SQL statements; each sees one snapshot, and stores all or nothing."""

from __future__ import annotations

import re

# At most one part of a statement changes a table (CockroachDB refuses more). thread_id is in every condition, so that a
# distributed table is read on one node. No statement uses advisory locks, NOTIFY, sequences or stored functions.

# With a limit that is unknown at planning time, PostgreSQL expects a tenth of its default of ten elements per array,
# which is realistic. If it expects ten, it considers the generic plan too expensive and plans every execution again:
# 0.8 of the 0.95 ms of a write in the server.
ALL = (1 << 31) - 1
LAST = (1 << 63) - 1
"""Maximum sequence number."""

# The statement reads the situation from its snapshot, and claims the thread by a compare-and-set of its sequence
# number. If another write has changed that number, nothing is inserted, because all inserts select from the claim; the
# store then sends the statement again. So the situation is current whenever it is used, at every isolation level,
# without a lock that outlives the statement.
# NOT IN here, and `<> 2` below, for queries of the first entry of an order: for conditions that the planner expects few
# rows to match, it reads and sorts all rows.
# MATERIALIZED: otherwise the server looks up the head at each reference, which took a fifth of the time of a write.
SITUATION = """
WITH situation AS MATERIALIZED (
    SELECT t.epoch, t.seq, same.seq AS same_seq, same.los AS same_los,
        coalesce(same.token = %(token)s::bigint, false) AS again,
        coalesce(
            (SELECT e.id FROM {entries} e WHERE e.thread_id = %(thread)s AND e.ns = %(ns)s AND e.kinds >= ''
             AND e.state NOT IN (1, 2) ORDER BY e.seq DESC LIMIT 1),
            (SELECT e.id FROM {entries} e WHERE e.thread_id = %(thread)s AND e.ns = %(ns)s AND e.kinds >= ''
             AND e.state NOT IN (0, 2) ORDER BY e.seq DESC LIMIT 1)
        ) AS head,
        %(base_seq)s::bigint IS NULL OR t.epoch = %(base_epoch)s::bigint AND EXISTS (
            SELECT 1 FROM {entries} e WHERE e.thread_id = %(thread)s AND e.ns = %(ns)s AND e.kinds >= ''
            AND e.seq = %(base_seq)s::bigint AND e.token = %(base_token)s::bigint AND e.state < 2
        ) AS has_base
    FROM (SELECT 1) AS one
    LEFT JOIN {threads} t ON t.thread_id = %(thread)s
    LEFT JOIN {entries} same ON same.thread_id = %(thread)s AND same.ns = %(ns)s AND same.id = %(id)s
), judged AS (
    SELECT s.*, NOT %(checked)s OR NOT %(beside)s AND (head IS NULL AND %(parent)s::text IS NULL
        OR coalesce(head = %(parent)s::text, false) OR coalesce(head = %(id)s, false)) AS follows,
        %(checked)s AND %(beside)s AS beside
    FROM situation s
), ruling AS (
    SELECT j.*, CASE
        WHEN again THEN 'stored'
        WHEN has_base IS NOT TRUE THEN 'gone'
        WHEN NOT follows AND NOT %(forks)s THEN 'moved'
        ELSE 'new'
    END AS answer
    FROM judged j
), firsts AS (
    SELECT c.channel, greatest(
        coalesce((SELECT i.lo + i.count FROM {items} i WHERE i.thread_id = %(thread)s AND i.ns = %(ns)s
                  AND i.channel = c.channel ORDER BY i.lo DESC LIMIT 1), 0),
        coalesce((SELECT f.floor FROM {floors} f WHERE f.thread_id = %(thread)s AND f.ns = %(ns)s
                  AND f.channel = c.channel), 0)
    ) AS first
    FROM (SELECT g.channel FROM unnest(%(growing)s::text[]) AS g(channel) LIMIT %(all)s) AS c
), claimed AS (
    INSERT INTO {threads} AS t (thread_id, epoch, seq, basis, put_at, name, head, marks, late_of, late)
    SELECT %(thread)s, %(epoch)s, coalesce(seq, 0) + 1, coalesce(epoch, 0), %(put_at)s, %(name)s,
        coalesce(seq, 0) + 1, CASE WHEN follows OR head IS NULL AND NOT beside THEN %(marks)s::text END,
        before.id, CASE WHEN before.id IS NOT NULL THEN '?' END
    FROM ruling LEFT JOIN LATERAL (
        SELECT b.checkpoint_id AS id FROM {batches} b WHERE b.thread_id = %(thread)s AND b.ns = '' AND epoch IS NULL
        ORDER BY b.checkpoint_id COLLATE "C" DESC LIMIT 1
    ) AS before ON true
    WHERE answer = 'new'
    ON CONFLICT (thread_id) DO UPDATE SET seq = excluded.seq, put_at = greatest(t.put_at, excluded.put_at),
        head = CASE WHEN excluded.marks IS NULL THEN t.head ELSE excluded.head END,
        marks = coalesce(excluded.marks, t.marks),
        late_of = CASE WHEN excluded.marks IS NULL OR t.late_of COLLATE "C" >= %(id)s THEN t.late_of END,
        late = CASE WHEN excluded.marks IS NULL OR t.late_of COLLATE "C" >= %(id)s THEN t.late END
        WHERE t.epoch = excluded.basis AND t.seq = excluded.seq - 1
    RETURNING t.epoch, t.seq, t.put_at
), won AS (
    SELECT c.epoch, c.seq, c.put_at, CASE WHEN r.follows OR r.head IS NULL AND NOT r.beside THEN 0 ELSE 1 END AS state
    -- If the thread was deleted since it was read, the row is a new one, and the write does not win.
    FROM claimed c JOIN ruling r ON r.epoch IS NULL OR r.epoch = c.epoch
)
"""

APPENDED = """
SELECT %(thread)s AS thread_id, %(ns)s AS ns, r.channel, r.lo + f.first AS lo, r.count, r.body
FROM won
CROSS JOIN (
    SELECT * FROM unnest(
        %(row_channels)s::text[], %(row_los)s::integer[], %(row_counts)s::integer[], %(row_bodies)s::bytea[]
    ) AS u(channel, lo, count, body) LIMIT %(all)s
) AS r
JOIN firsts f ON f.channel = r.channel
"""

# A packed row is inserted only if the rows in its range are exactly those it was packed from.
PACKED = """
UNION ALL
SELECT %(thread)s, %(ns)s, p.channel, p.lo, p.count, p.body
FROM won
CROSS JOIN unnest(
    %(pack_channels)s::text[], %(pack_los)s::integer[], %(pack_counts)s::integer[], %(pack_bodies)s::bytea[]
) AS p(channel, lo, count, body)
WHERE (
    SELECT sum(i.count) = p.count AND max(i.lo + i.count) = p.lo + p.count AND count(*) > 1
    FROM {items} i
    WHERE i.thread_id = %(thread)s AND i.ns = %(ns)s AND i.channel = p.channel
    AND i.lo >= p.lo AND i.lo < p.lo + p.count
)
"""

STORED = """
, grown AS (
    INSERT INTO {items} (thread_id, ns, channel, lo, count, body)
    {appended}
    RETURNING 1
), runs AS (
    SELECT coalesce(array_agg(r.owner ORDER BY r.n), '{}') AS owners,
        coalesce(array_agg(r.lo + coalesce(f.first, 0) ORDER BY r.n), '{}') AS los,
        coalesce(array_agg(r.hi + coalesce(f.first, 0) ORDER BY r.n), '{}') AS his
    FROM unnest(%(owners)s::integer[], %(los)s::integer[], %(his)s::integer[], %(news)s::text[])
        WITH ORDINALITY AS r(owner, lo, hi, channel, n)
    LEFT JOIN firsts f ON f.channel = r.channel
), kept AS (
    INSERT INTO {entries} (thread_id, ns, id, seq, token, state, parent, run_id, put_at, channels, kinds, owners, los,
        his, names, header)
    SELECT %(thread)s, %(ns)s, %(id)s, won.seq, %(token)s, won.state, %(parent)s, %(run)s, won.put_at,
        %(channels)s::text[], %(kinds)s, runs.owners, runs.los, runs.his, %(names)s, %(header)s
    FROM won, runs
    ON CONFLICT (thread_id, ns, id) DO UPDATE SET seq = excluded.seq, token = excluded.token, state = excluded.state,
        parent = excluded.parent, run_id = excluded.run_id, put_at = excluded.put_at, channels = excluded.channels,
        kinds = excluded.kinds, owners = excluded.owners, los = excluded.los, his = excluded.his, kept = NULL,
        names = excluded.names, header = excluded.header
    RETURNING los
)
SELECT r.answer, r.head, coalesce(won.epoch, r.epoch), CASE r.answer WHEN 'stored' THEN r.same_seq ELSE won.seq END,
    coalesce(kept.los, r.same_los)
FROM ruling r LEFT JOIN won ON true LEFT JOIN kept ON true
"""

PUT = SITUATION + STORED.replace("{appended}", APPENDED)
PUT_PACKED = SITUATION + STORED.replace("{appended}", APPENDED + PACKED)

# Second statement of PUT_PACKED's transaction: delete the rows that packed rows replace.
UNPACK = """
DELETE FROM {items} i
USING unnest(%(pack_channels)s::text[], %(pack_los)s::integer[], %(pack_counts)s::integer[]) AS p(channel, lo, count)
WHERE i.thread_id = %(thread)s AND i.ns = %(ns)s AND i.channel = p.channel
AND i.lo >= p.lo AND i.lo < p.lo + p.count AND i.count < p.count
AND EXISTS (
    SELECT 1 FROM {items} q WHERE q.thread_id = %(thread)s AND q.ns = %(ns)s
    AND q.channel = p.channel AND q.lo = p.lo AND q.count = p.count
)
"""

WRITE_BATCH = """
INSERT INTO {batches} (thread_id, ns, checkpoint_id, n, token, task_id, task_path, body)
SELECT %(thread)s, %(ns)s, %(id)s, 1 + coalesce((
    SELECT max(b.n) FROM {batches} b WHERE b.thread_id = %(thread)s AND b.ns = %(ns)s AND b.checkpoint_id = %(id)s
), 0), %(token)s, %(task)s, %(path)s, %(body)s
"""
# late_of is the latest checkpoint to which tasks have written, because durability="async" stores writes before their
# checkpoint. If the thread has no row yet, nothing is updated: the statement that inserts the row sets late to '?'
# (unknown).
FIND_LATE = """
UPDATE {threads} SET
    late_of = greatest(late_of COLLATE "C", %(id)s),
    late = CASE WHEN position(%(late)s IN late) > 0 THEN late ELSE coalesce(late || ' ', '') || %(late)s END
WHERE thread_id = %(thread)s
"""

# -- reading -----------------------------------------------------------------------------------------------------------

# One result with several kinds of rows, distinguished by the first column (`rows.Line`).
ENTRY_LINE = """0, e.thread_id, e.ns, e.id, e.seq, e.state::integer, e.header, {parent}, e.run_id, t.epoch, e.channels,
    e.kinds, e.owners, e.los, e.his, e.kept, e.names, t.name, e.token"""
# For users: the parent, unless it was removed or is a ghost.
SHOWN_PARENT = (
    "(SELECT p.id FROM {entries} p WHERE p.thread_id = e.thread_id AND p.ns = e.ns AND p.id = e.parent AND p.state < 2)"
)
SHOWN = ENTRY_LINE.replace("{parent}", SHOWN_PARENT)
PLAIN = ENTRY_LINE.replace("{parent}", "e.parent")
UNKNOWN = re.sub(r"e\.(header|channels|kinds|owners|los|his)", r"CASE WHEN e.is_new THEN e.\1 END", SHOWN)
MARK = f"0, e.thread_id, e.ns, e.id, e.seq, 0, NULL::bytea, NULL, NULL, t.epoch{', NULL' * 8}, e.token"
NINE = ", NULL" * 9

NAMED = "e.thread_id = %(thread)s AND e.ns = %(ns)s AND e.id = %(id)s AND e.state < 2"
LATEST = """e.thread_id = {thread} AND e.ns = {ns} AND e.kinds >= '' AND e.seq = coalesce(
    (SELECT h.seq FROM {entries} h WHERE h.thread_id = {thread} AND h.ns = {ns} AND h.kinds >= ''
     AND h.state NOT IN (1, 2) ORDER BY h.seq DESC LIMIT 1),
    (SELECT h.seq FROM {entries} h WHERE h.thread_id = {thread} AND h.ns = {ns} AND h.kinds >= ''
     AND h.state NOT IN (0, 2) ORDER BY h.seq DESC LIMIT 1)
)"""
LATEST_OF_ROOT = LATEST.replace("{thread}", "t.thread_id").replace("{ns}", "''")
LATEST = LATEST.replace("{thread}", "%(thread)s").replace("{ns}", "%(ns)s")

CHOSEN = "WITH chosen AS (SELECT e.* FROM {entries} e WHERE {where})"
# If the caller knows the entry, neither its large columns nor its rows are read. The epoch is compared too: a copy has
# the numbers and tokens of its source, and a copy that was deleted and made again has a new epoch.
KNOWN_OR_NOT = """
WITH chosen AS (
    SELECT e.*, (e.seq, e.token) <> (%(seq)s, %(token)s)
        OR (SELECT k.epoch FROM {threads} k WHERE k.thread_id = %(thread)s) <> %(epoch)s AS is_new
    FROM {entries} e WHERE {where}
)"""
LISTED = """
WITH chosen AS (
    SELECT e.*
    FROM unnest(%(threads)s::text[], %(nss)s::text[], %(epochs)s::bigint[], %(seqs)s::bigint[])
        AS a(thread_id, ns, epoch, seq)
    JOIN {threads} t ON t.thread_id = a.thread_id AND t.epoch = a.epoch
    -- OFFSET 0: one index look-up each, also for a thread that is much longer than most.
    CROSS JOIN LATERAL (
        SELECT l.* FROM {entries} l WHERE l.thread_id = a.thread_id AND l.put_at >= '' AND l.seq = a.seq OFFSET 0
    ) AS e
)"""
# The walk along parents ends when all requested channels are found or, by UNION, at an entry that was visited before:
# stored parents may form a cycle.
WALKED = """
WITH RECURSIVE walk AS (
    SELECT e.id AS start, e.id, e.parent, %(channels)s::text[] AS missing FROM {entries} e WHERE {where}
    UNION
    SELECT w.start, e.id, e.parent, ARRAY(
        SELECT m FROM unnest(w.missing) AS m WHERE m <> ALL (e.channels) OR m <> ALL (coalesce(e.kept, e.channels))
    )
    FROM walk w CROSS JOIN LATERAL (
        SELECT p.* FROM {entries} p WHERE p.thread_id = %(thread)s AND p.ns = %(ns)s AND p.id = w.parent OFFSET 0
    ) AS e
    WHERE cardinality(w.missing) > 0
), chosen AS (
    SELECT e.* FROM (SELECT DISTINCT w.id FROM walk w WHERE w.id <> w.start) w
    CROSS JOIN LATERAL (
        SELECT l.* FROM {entries} l WHERE l.thread_id = %(thread)s AND l.ns = %(ns)s AND l.id = w.id OFFSET 0
    ) AS e
)"""

# OFFSET 0, as in all look-ups per row, is an optimization fence: otherwise the planner may read and join a whole table
# or thread.
OF_THREAD = "CROSS JOIN LATERAL (SELECT k.epoch, k.name FROM {threads} k WHERE k.thread_id = e.thread_id OFFSET 0) AS t"
CONTENT = f"""
, runs AS (
    -- Versions of a list mostly have the same start: one walk for all of them.
    SELECT c.thread_id, c.ns, c.channels[r.owner] AS channel, r.lo, max(r.hi) AS hi
    FROM chosen c CROSS JOIN LATERAL unnest(c.owners, c.los, c.his) AS r(owner, lo, hi)
    {{only}}
    GROUP BY c.thread_id, c.ns, c.channels[r.owner], r.lo
), starts AS MATERIALIZED (
    -- The start of the row with the first item of a run.
    SELECT r.thread_id, r.ns, r.channel, r.hi, coalesce((
        SELECT j.lo FROM {{items}} j WHERE j.thread_id = r.thread_id AND j.ns = r.ns AND j.channel = r.channel
        AND j.lo <= r.lo ORDER BY j.lo DESC LIMIT 1
    ), r.lo) AS start
    FROM runs r
), spans AS (
    SELECT DISTINCT s.thread_id, s.ns, s.channel, i.lo
    FROM starts s CROSS JOIN LATERAL (
        SELECT i.lo FROM {{items}} i WHERE i.thread_id = s.thread_id AND i.ns = s.ns AND i.channel = s.channel
        AND i.lo >= s.start AND i.lo < s.hi OFFSET 0
    ) AS i
)
SELECT {{line}} FROM chosen e {OF_THREAD}
UNION ALL
SELECT 1, i.thread_id, i.ns, i.channel, i.lo, i.count, i.body, NULL, NULL, NULL{NINE}
FROM spans s CROSS JOIN LATERAL (
    SELECT j.* FROM {{items}} j
    WHERE j.thread_id = s.thread_id AND j.ns = s.ns AND j.channel = s.channel AND j.lo = s.lo OFFSET 0
) AS i
UNION ALL
SELECT 2, b.thread_id, b.ns, b.checkpoint_id, b.token, b.n, b.body, b.task_path, b.task_id, NULL{NINE}
FROM chosen c CROSS JOIN LATERAL (
    SELECT w.* FROM {{batches}} w
    WHERE w.thread_id = c.thread_id AND w.ns = c.ns AND w.checkpoint_id = c.id OFFSET 0
) AS b
"""
ONLY = "WHERE c.channels[r.owner] = ANY (%(channels)s)"


# The pages of a thread are read entry by entry: if the planner expects fewer entries than the limit, it reads and sorts
# the whole thread.
SCAN_THREAD = f"""
WITH RECURSIVE page AS (
    (SELECT 1 AS place, e.* FROM {{entries}} e WHERE e.state <> 2{{conditions}} ORDER BY e.seq DESC LIMIT 1)
    UNION ALL
    SELECT n.* FROM page p CROSS JOIN LATERAL (
        SELECT p.place + 1, e.* FROM {{entries}} e WHERE e.state <> 2{{conditions}} AND e.seq < p.seq
        ORDER BY e.seq DESC LIMIT 1
    ) AS n
    WHERE p.place < %(limit)s
)
SELECT {SHOWN} FROM page e {OF_THREAD} ORDER BY e.place
"""
SCAN_ALL = f"""
SELECT {SHOWN} FROM {{entries}} e {OF_THREAD} WHERE {{of_tenant}} AND e.state < 2{{conditions}}
ORDER BY e.id DESC, e.thread_id DESC, e.ns DESC LIMIT %(limit)s
"""
FROM_ID = " AND (e.id, e.thread_id, e.ns) < (%(last_id)s, %(last_thread)s, %(last_ns)s)"
FROM_SEQ = """ AND e.seq < %(last_seq)s AND EXISTS (
    SELECT 1 FROM {threads} k WHERE k.thread_id = %(thread_id)s AND k.epoch = %(last_epoch)s
)"""
# With a thread and a namespace, a page begins at that entry instead of the head.
_BEFORE = "SELECT b.seq FROM {entries} b WHERE b.thread_id = {thread} AND b.ns = {ns} AND b.id = %(before)s"
PRECEDES = f""" AND e.seq < coalesce(({_BEFORE}), {LAST}) AND (e.id < %(before)s OR EXISTS ({_BEFORE}))"""

# The runs of most entries are not used, and numbers in a text are parsed in a fifth of the time of arrays.
LATE = PLAIN.replace("e.owners, e.los, e.his", "e.owners::text, e.los::text, e.his::text") + ", e.put_at"
GRAPH = f"""
SELECT {LATE} FROM {{entries}} e JOIN {{threads}} t ON t.thread_id = e.thread_id
WHERE e.thread_id = %(thread)s AND e.put_at >= ''
UNION ALL
SELECT 1, %(thread)s, o.ns, o.channel, 0, max(o.until), NULL, NULL, NULL, NULL{NINE}, NULL
FROM (
    SELECT ns, channel, lo + count AS until FROM {{items}} WHERE thread_id = %(thread)s
    UNION ALL
    SELECT ns, channel, floor FROM {{floors}} WHERE thread_id = %(thread)s
) AS o
GROUP BY o.ns, o.channel
UNION ALL
SELECT 3, t.thread_id, NULL, NULL, 0, 0, NULL, NULL, NULL, t.epoch{NINE}, NULL
FROM {{threads}} t WHERE t.thread_id = %(thread)s
"""

FIND_RUNS = """
SELECT DISTINCT t.thread_id, t.name FROM {entries} e JOIN {threads} t ON t.thread_id = e.thread_id
WHERE e.run_id = ANY (%(runs)s) AND {of_tenant}
"""

# Includes threads without a visible checkpoint: with a look-up for each, the cost estimate for 100,000 threads
# triggered JIT compilation, 350 ms of 390.
THREADS = f"""
WITH page AS (
    SELECT t.thread_id, t.name, t.epoch, t.put_at FROM {{threads}} t WHERE {{of_tenant}}{{only}}
    ORDER BY t.put_at {{way}}, t.thread_id {{way}} LIMIT %(limit)s
)
SELECT t.thread_id, t.name, t.put_at,
    (SELECT count(*) FROM {{entries}} c WHERE c.thread_id = t.thread_id AND c.put_at >= '' AND c.state < 2), {SHOWN}
FROM page t LEFT JOIN LATERAL (SELECT e.* FROM {{entries}} e WHERE {LATEST_OF_ROOT} OFFSET 0) AS e ON true
ORDER BY t.put_at {{way}}, t.thread_id {{way}}
"""
WAYS = ("DESC", "<"), ("ASC", ">")
AFTER = " AND (t.put_at, t.thread_id) {past} (%(put_at)s, %(after)s)"
FOUND_BY = (
    " AND (coalesce(t.marks, '') = '' OR left(t.late, 1) = '?' "
    "OR t.marks || ' ' || coalesce(t.late, '') LIKE ALL (%(terms)s::text[]))"
)

# -- removing: first lock the thread's row, so that later statements see all other changes -----------------

HOLD = "UPDATE {threads} SET seq = seq + 1 WHERE thread_id = %(thread)s AND epoch = %(epoch)s"
HELD = "EXISTS (SELECT 1 FROM {threads} t WHERE t.thread_id = %(thread)s AND t.epoch = %(epoch)s)"

REMOVE_ENTRIES = f"""
WITH gone AS (
    DELETE FROM {{entries}} e
    WHERE e.thread_id = %(thread)s AND e.put_at >= '' AND e.seq = ANY (%(gone)s::bigint[]) AND {HELD}
    RETURNING e.ns, e.id
), unwritten AS (
    -- IS TRUE forces a hash. As a join it becomes a nested loop: 120 ms instead of 5.
    DELETE FROM {{batches}} b
    WHERE b.thread_id = %(thread)s AND ((b.ns, b.checkpoint_id) IN (SELECT g.ns, g.id FROM gone g)) IS TRUE
    RETURNING 1
)
SELECT count(*) FROM gone
"""
MAKE_GHOSTS = f"""
UPDATE {{entries}} e SET state = 2, kept = g.kept,
    owners = r.owners, los = r.los, his = r.his
FROM (
    SELECT p.seq, array_remove(array_agg(p.channel), NULL) AS kept
    FROM unnest(%(seqs)s::bigint[], %(channels)s::text[]) AS p(seq, channel) GROUP BY p.seq
) AS g
CROSS JOIN LATERAL (
    SELECT l.* FROM {{entries}} l WHERE l.thread_id = %(thread)s AND l.put_at >= '' AND l.seq = g.seq OFFSET 0
) AS o
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(u.owner ORDER BY u.n), '{{}}') AS owners,
        coalesce(array_agg(u.lo ORDER BY u.n), '{{}}') AS los,
        coalesce(array_agg(u.hi ORDER BY u.n), '{{}}') AS his
    FROM unnest(o.owners, o.los, o.his) WITH ORDINALITY AS u(owner, lo, hi, n)
    WHERE o.channels[u.owner] = ANY (g.kept)
) AS r
WHERE e.thread_id = %(thread)s AND e.ns = o.ns AND e.id = o.id AND {HELD}
"""
REDATE = """
UPDATE {threads} t SET put_at = coalesce((
    SELECT e.put_at FROM {entries} e WHERE e.thread_id = %(thread)s AND e.put_at >= '' AND e.state <> 2
    ORDER BY e.seq DESC LIMIT 1
), t.put_at), marks = CASE WHEN EXISTS (
    SELECT 1 FROM {entries} e
    WHERE e.thread_id = %(thread)s AND e.ns = '' AND e.put_at >= '' AND e.seq = t.head AND e.state = 0
) THEN t.marks END WHERE t.thread_id = %(thread)s
"""

# Before rows are deleted: their numbers must never be reused.
KEEP_FLOORS = f"""
INSERT INTO {{floors}} AS f (thread_id, ns, channel, floor)
SELECT %(thread)s, o.ns, o.channel, o.until
FROM unnest(%(nss)s::text[], %(channels)s::text[], %(ends)s::integer[]) AS o(ns, channel, until)
WHERE {HELD}
ON CONFLICT (thread_id, ns, channel) DO UPDATE SET floor = greatest(f.floor, excluded.floor)
"""
REMOVE_ROWS = f"""
WITH dead AS (
    DELETE FROM {{items}} i
    USING unnest(%(nss)s::text[], %(channels)s::text[], %(ends)s::integer[]) AS o(ns, channel, until)
    WHERE i.thread_id = %(thread)s AND i.ns = o.ns AND i.channel = o.channel AND i.lo < o.until AND {HELD}
    AND NOT EXISTS (
        SELECT 1
        FROM unnest(%(live_nss)s::text[], %(live_channels)s::text[], %(los)s::integer[], %(his)s::integer[])
            AS l(ns, channel, lo, hi)
        WHERE l.ns = i.ns AND l.channel = i.channel AND i.lo < l.hi AND l.lo < i.lo + i.count
    )
    RETURNING 1
)
SELECT count(*) FROM dead
"""

# -- sealing stored content later --------------------------------------------------------------------------------------

LIST_WRITES = """
SELECT b.ns, b.checkpoint_id, b.n, b.token, b.task_id, b.task_path, b.body
FROM {batches} b
WHERE b.thread_id = %(thread)s
AND (b.ns, b.checkpoint_id, b.n, b.token) > (%(ns)s, %(id)s, %(n)s::integer, %(token)s::bigint)
ORDER BY b.ns, b.checkpoint_id, b.n, b.token LIMIT %(limit)s
"""
NAMES_IN = """
SELECT DISTINCT unnest(e.names) FROM {entries} e
WHERE e.thread_id = %(thread)s AND e.put_at >= '' AND e.names IS NOT NULL
"""
# First, because it locks the thread's row: marks of a concurrent write are either removed here or stored later.
FORGET_MARKS = """
UPDATE {threads} SET marks = NULL, late_of = NULL, late = NULL WHERE thread_id = %(thread)s AND epoch = %(epoch)s
"""
_IS_PLAIN = "substring({body} FROM 1 FOR 1) <> %(sealed)s::bytea"
SEAL_ENTRIES = f"""
UPDATE {{entries}} e SET header = s.header
FROM unnest(%(seqs)s::bigint[], %(tokens)s::bigint[], %(headers)s::bytea[]) AS s(seq, token, header)
WHERE e.thread_id = %(thread)s AND e.put_at >= '' AND e.seq = s.seq AND e.token = s.token
AND {_IS_PLAIN.replace("{body}", "e.header")} AND {HELD}
"""
SEAL_ROWS = f"""
UPDATE {{items}} i SET body = s.body
FROM unnest(
    %(row_nss)s::text[], %(row_channels)s::text[], %(row_los)s::integer[], %(row_counts)s::integer[],
    %(row_bodies)s::bytea[]
) AS s(ns, channel, lo, count, body)
WHERE i.thread_id = %(thread)s AND i.ns = s.ns AND i.channel = s.channel AND i.lo = s.lo AND i.count = s.count
AND {_IS_PLAIN.replace("{body}", "i.body")} AND {HELD}
"""
# By their tokens, because a thread that has only writes has no epoch.
SEAL_WRITES = f"""
UPDATE {{batches}} b SET body = s.body
FROM unnest(
    %(nss)s::text[], %(ids)s::text[], %(ns_of)s::integer[], %(batch_tokens)s::bigint[], %(bodies)s::bytea[]
) AS s(ns, id, n, token, body)
WHERE b.thread_id = %(thread)s AND b.ns = s.ns AND b.checkpoint_id = s.id AND b.n = s.n AND b.token = s.token
AND {_IS_PLAIN.replace("{body}", "b.body")}
"""

DELETE_THREAD = "DELETE FROM {threads} WHERE thread_id = %(thread)s"
DELETE_UNCHANGED = """
DELETE FROM {threads} t WHERE t.thread_id = %(thread)s AND t.epoch = %(epoch)s AND %(last)s = (
    SELECT max(e.seq) FROM {entries} e WHERE e.thread_id = %(thread)s AND e.put_at >= '' AND e.state <> 2
)
RETURNING 1
"""
# Without a row to lock, a concurrent first write may create the thread: its content must not be deleted.
NO_THREAD = "NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.thread_id = %(thread)s)"
GONE = f"thread_id = %(thread)s AND {NO_THREAD}"
DELETE_CONTENT = f"""
WITH e AS (DELETE FROM {{entries}} WHERE {GONE} AND put_at >= ''),
i AS (DELETE FROM {{items}} WHERE {GONE}),
f AS (DELETE FROM {{floors}} WHERE {GONE})
DELETE FROM {{batches}} WHERE {GONE}
"""


# Each table, and the condition for an index on a thread's rows other than the primary key.
_CONTENT = {"entries": " AND x.put_at >= ''", "items": "", "floors": "", "batches": "", "cells": ""}
_GONE = ",\n".join(
    f"{table} AS (DELETE FROM {{{table}}} x USING leaving WHERE x.thread_id = leaving.thread_id{by_index})"
    for table, by_index in _CONTENT.items()
)
DELETE_SOME = f"""
WITH leaving AS (SELECT s.thread_id FROM {{threads}} s WHERE {{of_tenant}} ORDER BY s.thread_id LIMIT %(limit)s),
{_GONE},
gone AS (DELETE FROM {{threads}} x USING leaving WHERE x.thread_id = leaving.thread_id RETURNING 1)
SELECT count(*) FROM gone
"""
# The rest without a thread: cells, and writes of steps that ended after their thread was deleted.
DELETE_ALL = [f"DELETE FROM {{{table}}} x WHERE {{of_tenant}}{by_index}" for table, by_index in _CONTENT.items()]
DELETE_ALL_SHARED = "DELETE FROM {cells} x WHERE x.thread_id = '' AND {of_tenant}"

_BEGUN = """
WITH occupied AS (
    SELECT 1 FROM {threads} t WHERE t.thread_id = %(target)s
    UNION ALL
    SELECT 1 FROM {batches} b WHERE b.thread_id = %(target)s
), source AS ({source}), begun AS (
    INSERT INTO {threads} (thread_id, epoch, seq, basis, put_at, name)
    SELECT %(target)s, %(epoch)s, s.seq, 0, s.put_at, %(name)s FROM source s
    WHERE NOT EXISTS (SELECT 1 FROM occupied)
    ON CONFLICT (thread_id) DO NOTHING
    RETURNING 1
)"""
_DONE = """
SELECT EXISTS (SELECT 1 FROM begun),
    EXISTS (SELECT 1 FROM {threads} t WHERE t.thread_id = %(target)s AND t.epoch = %(epoch)s),
    EXISTS (SELECT 1 FROM occupied),
    EXISTS (SELECT 1 FROM source)
"""

_WHOLE = """
    SELECT max(seq) AS seq, max(put_at) AS put_at
    FROM (
        SELECT s.seq, s.put_at FROM {threads} s WHERE s.thread_id = %(thread)s
        UNION ALL
        SELECT 0, '' FROM {batches} b WHERE b.thread_id = %(thread)s
    ) AS s
    HAVING count(*) > 0
"""
COPY_THREAD = (
    _BEGUN.replace("{source}", _WHOLE)
    + """, e AS (
    INSERT INTO {entries} (thread_id, ns, id, seq, token, state, parent, run_id, put_at, channels, kinds, owners, los,
        his, kept, names, header)
    SELECT %(target)s, ns, id, seq, token, state, parent, run_id, put_at, channels, kinds, owners, los, his, kept,
        names, header
    FROM {entries}, begun WHERE thread_id = %(thread)s AND put_at >= ''
), i AS (
    INSERT INTO {items} (thread_id, ns, channel, lo, count, body)
    SELECT %(target)s, ns, channel, lo, count, body FROM {items}, begun WHERE thread_id = %(thread)s
), f AS (
    INSERT INTO {floors} (thread_id, ns, channel, floor)
    SELECT %(target)s, ns, channel, floor FROM {floors}, begun WHERE thread_id = %(thread)s
), b AS (
    INSERT INTO {batches} (thread_id, ns, checkpoint_id, n, token, task_id, task_path, body)
    SELECT %(target)s, ns, checkpoint_id, n, token, task_id, task_path, body
    FROM {batches}, begun WHERE thread_id = %(thread)s
)"""
    + _DONE
)

_UPTO = """
    SELECT t.seq, greatest(e.put_at, %(put_at)s) AS put_at
    FROM {threads} t JOIN {entries} e ON e.thread_id = t.thread_id
    WHERE t.thread_id = %(thread)s AND t.epoch = %(life)s
    AND e.seq = %(upto)s AND e.token = %(token)s AND e.put_at >= '' AND e.state < 2
"""
COPY_UPTO = (
    _BEGUN.replace("{source}", _UPTO)
    + """, chosen AS MATERIALIZED (
    SELECT e.* FROM {entries} e, begun WHERE e.thread_id = %(thread)s AND e.put_at >= '' AND e.seq <= %(upto)s
), shown AS MATERIALIZED (
    -- Of each log, the number after the last item that an entry refers to.
    SELECT c.ns, c.channels[r.owner] AS channel, max(r.hi) AS hi
    FROM chosen c CROSS JOIN LATERAL unnest(c.owners, c.his) AS r(owner, hi)
    GROUP BY c.ns, c.channels[r.owner]
), e AS (
    INSERT INTO {entries} (thread_id, ns, id, seq, token, state, parent, run_id, put_at, channels, kinds, owners, los,
        his, kept, names, header)
    SELECT %(target)s, ns, id, seq, token, CASE WHEN seq = %(upto)s THEN 0 ELSE state END, parent, run_id,
        CASE WHEN seq = %(upto)s THEN greatest(put_at, %(put_at)s) ELSE put_at END,
        channels, kinds, owners, los, his, kept, names,
        CASE WHEN seq = %(upto)s THEN %(header)s::bytea ELSE header END
    FROM chosen
), i AS (
    INSERT INTO {items} (thread_id, ns, channel, lo, count, body)
    SELECT %(target)s, s.ns, s.channel, j.lo, j.count, j.body FROM shown s CROSS JOIN LATERAL (
        SELECT i.lo, i.count, i.body FROM {items} i
        WHERE i.thread_id = %(thread)s AND i.ns = s.ns AND i.channel = s.channel AND i.lo < s.hi OFFSET 0
    ) AS j
), f AS (
    INSERT INTO {floors} (thread_id, ns, channel, floor)
    SELECT %(target)s, f.ns, f.channel, f.floor
    FROM shown s JOIN {floors} f ON f.thread_id = %(thread)s AND f.ns = s.ns AND f.channel = s.channel
), b AS (
    INSERT INTO {batches} (thread_id, ns, checkpoint_id, n, token, task_id, task_path, body)
    SELECT %(target)s, c.ns, c.id, j.n, j.token, j.task_id, j.task_path, j.body FROM chosen c CROSS JOIN LATERAL (
        SELECT b.n, b.token, b.task_id, b.task_path, b.body FROM {batches} b
        WHERE b.thread_id = %(thread)s AND b.ns = c.ns AND b.checkpoint_id = c.id OFFSET 0
    ) AS j
    WHERE c.seq < %(upto)s
)"""
    + _DONE
)


# -- reading entries, with their rows ----------------------------------------------------------------------------------


def _content(chosen: str, where: str = "", line: str = SHOWN, only: str = "") -> str:
    content = CONTENT.replace("{line}", line).replace("{only}", only)
    return (chosen + content).replace("{where}", where)


READ_NAMED = _content(CHOSEN, NAMED)
READ_LATEST = _content(CHOSEN, LATEST)
READ_KNOWN_NAMED = _content(KNOWN_OR_NOT, NAMED, UNKNOWN, "WHERE c.is_new")
READ_KNOWN_LATEST = _content(KNOWN_OR_NOT, LATEST, UNKNOWN, "WHERE c.is_new")
READ_LISTED = _content(LISTED, line=MARK)
READ_BARE = _content(LISTED, line=MARK, only="WHERE false")
WALK_NAMED = _content(WALKED, NAMED, PLAIN, ONLY)
WALK_LATEST = _content(WALKED, LATEST, PLAIN, ONLY)
