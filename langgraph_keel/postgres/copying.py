"""The statement that copies a thread, whole or up to an entry (see `statements`)."""

from __future__ import annotations

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
    FROM {entries}, begun WHERE thread_id = %(thread)s
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
    SELECT t.seq, e.put_at FROM {threads} t JOIN {entries} e ON e.thread_id = t.thread_id
    WHERE t.thread_id = %(thread)s AND t.epoch = %(life)s
    AND e.seq = %(upto)s AND e.token = %(token)s AND e.state < 2
"""
COPY_UPTO = (
    _BEGUN.replace("{source}", _UPTO)
    + """, chosen AS MATERIALIZED (
    SELECT e.* FROM {entries} e, begun WHERE e.thread_id = %(thread)s AND e.seq <= %(upto)s
), shown AS MATERIALIZED (
    -- Of each log, the item after the last that an entry shows.
    SELECT c.ns, c.channels[r.owner] AS channel, max(r.hi) AS hi
    FROM chosen c CROSS JOIN LATERAL unnest(c.owners, c.his) AS r(owner, hi)
    GROUP BY c.ns, c.channels[r.owner]
), e AS (
    INSERT INTO {entries} (thread_id, ns, id, seq, token, state, parent, run_id, put_at, channels, kinds, owners, los,
        his, kept, names, header)
    SELECT %(target)s, ns, id, seq, token, CASE WHEN seq = %(upto)s THEN 0 ELSE state END, parent, run_id, put_at,
        channels, kinds, owners, los, his, kept, names,
        CASE WHEN seq = %(upto)s THEN coalesce(%(header)s::bytea, header) ELSE header END
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
