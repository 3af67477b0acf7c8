-- Shared. KEYS[2] is the index of the bucket's threads, KEYS[3] that of the expiring ones, by time; KEYS[4] and KEYS[5]
-- are the thread's cells, which expire with it; KEYS[6] is the search terms of the bucket's threads. With: expiry
-- Both indexes name a life of a thread by its last activity, id and epoch, so that entries of an earlier life (expired
-- or deleted by hand) are never taken for this one.
local function place(life)
  return life.member .. '\0' .. life.epoch
end

-- The search terms of a life (engine/entries.py), under its epoch: the sequence number of the root entry of the marks;
-- the marks; the latest checkpoint to which tasks have written; the marks that these writes added ('?' if unknown); and
-- its place in the index, so that a list reads nothing else. A search always reads a thread without marks.
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

-- Move the thread and its search terms to another place in the index. Called before the thread is written: if the user
-- may not write it (ACL), only a member remains, which readers skip.
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

-- Remove a few expired threads from the indexes, about as many as a write can add.
local function sweep(now)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 4)) do
    redis.call('ZREM', KEYS[2], member)
    redis.call('ZREM', KEYS[3], member)
    unmark(member)
  end
end

-- The time to live after a write: the thread's own, or else the saver's. Read before anything is written.
local function ttl_of(default)
  local ttl = redis.call('HGET', KEYS[1], 'ttl') or default
  if ttl:find('%D') or #ttl > MOST_DIGITS then
    damaged('the field "ttl"')
  end
  return ttl
end

-- Let the thread expire in that many milliseconds (`ttl_of`; '': unchanged), in the same script as the write. A thread
-- is one hash, so it expires as a whole, and its cells with it. The score is later, so that only expired threads are
-- removed.
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
