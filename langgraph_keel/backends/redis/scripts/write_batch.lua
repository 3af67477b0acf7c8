-- Store.write_batch. With: fields, expiry, life
-- Grows with: the logarithm of the batches that the checkpoint has.
-- ARGV: epoch (for a new thread), ns, id, ttl, value, additional search terms of the thread
local epoch, ns, id, ttl, value, late = unpack(ARGV)
local line = get('thread')
local thread = life(KEYS[1], line) or { epoch = epoch, seq = 0, visible = 0, member = '' }
ttl = ttl_of(ttl)
local function there(n)
  return redis.call('HEXISTS', KEYS[1], string.format('write:%s:%s:%d', ns, id, n)) == 1
end

-- Batches are numbered without gaps, so the first free number is found by binary search.
local free = 0
if there(0) then
  local low, high = 0, 1
  while there(high) and high < 2 ^ 31 do
    low, high = high, 2 * high
  end
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if there(middle) then
      low = middle
    else
      high = middle
    end
  end
  free = high
end
redis.call('HSET', KEYS[1], string.format('write:%s:%s:%d', ns, id, free), value)
if not line then
  redis.call('HSET', KEYS[1], 'thread', life_line(thread))
end
-- Before its first entry the thread is not in the index: the first `write_entry` looks for such writes.
if late ~= '' and thread.member ~= '' then
  local held = marks_of(thread)
  held.late_of = held.late_of > id and held.late_of or id
  held.late = held.late:find(late, 1, true) and held.late or held.late .. ' ' .. late
  mark(thread, held)
end
arm(thread, ttl)
return 1
