-- Shared. KEYS[2] is the index of the bucket's threads, KEYS[3] that of those that expire, by when; KEYS[4] and KEYS[5]
-- are the thread's cells, which live as long as it; KEYS[6] is what the bucket's threads can be found by. With: expiry
-- Both indexes name a life of a thread, by its last activity, its id and its epoch: so that what an earlier life left
-- there, which expired or was deleted by hand, is never taken for this one.
local function place(life)
  return life.member .. '\0' .. life.epoch
end

-- What a life can be found by (engine/entries.py), under its epoch: the sequence number of the root entry that the marks
-- are of; the marks; the latest checkpoint to which tasks have written; the marks that these writes have added ('?' if
-- unknown); and its place in the index, so that a list reads nothing else. Without marks it is always looked at.
local function marks_of(life)
  local held = redis.call('HGET', KEYS[6], life.epoch) or ''
  local seq, marks, late_of, late = held:match('^(%d*)|([^|]*)|([^|]*)|([^|]*)|')
  return { seq = seq or '', marks = marks or '', late_of = late_of or '', late = late or '' }
end

local function mark(life, held)
  local parts = { held.seq, held.marks, held.late_of, held.late, place(life) }
  redis.call('HSET', KEYS[6], life.epoch, table.concat(parts, '|'))
end

local function unmark(member)
  redis.call('HDEL', KEYS[6], member:match('[^%z]*$'))
end

-- Move the thread to another place in the index, with what it can be found by there. Before the thread itself is
-- written: should the user have no right to that (ACL), all that is left is a member that readers pass over.
local function index(life, member, held)
  if life.member ~= member then
    local old = life.member ~= '' and place(life)
    life.member = member
    if member ~= '' then
      redis.call('ZADD', KEYS[2], 0, place(life))
    end
    if old then
      redis.call('ZREM', KEYS[2], old)
      redis.call('ZREM', KEYS[3], old)
    end
  end
  if member ~= '' then
    mark(life, held)
  else
    unmark(life.epoch)
  end
end

-- Take a few threads that have expired out of the indexes: no more than come in with a put.
local function sweep(now)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 4)) do
    redis.call('ZREM', KEYS[2], member)
    redis.call('ZREM', KEYS[3], member)
    unmark(member)
  end
end

-- The milliseconds that the thread lives after a write: its own, or else the saver's. Read before anything is written.
local function ttl_of(default)
  local ttl = redis.call('HGET', KEYS[1], 'ttl') or default
  if ttl:find('%D') or #ttl > MOST_DIGITS then
    damaged('the field "ttl"')
  end
  return ttl
end

-- Let the thread expire so many milliseconds from now (`ttl_of`; if empty: as it is).
-- In the same script as the write, and of one hash: a thread expires as a whole, and its cells with it. The score is
-- later than that, so that who is swept has expired.
local function arm(life, ttl)
  if ttl == '0' then
    persist({ KEYS[1], KEYS[4], KEYS[5] })
    redis.call('ZREM', KEYS[3], place(life))
  elseif ttl ~= '' then
    local at = expire({ KEYS[1], KEYS[4], KEYS[5] }, ttl)
    if life.member ~= '' then
      redis.call('ZADD', KEYS[3], at + 1, place(life))
    end
    sweep(at - ttl)
  end
end
