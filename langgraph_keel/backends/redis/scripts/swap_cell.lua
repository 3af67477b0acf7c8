-- Store.swap_cell. With: expiry, cells
-- Constant, except for the bodies. ARGV: the cell, its expected token ('' if it should not exist), the new value ('' to
-- remove it), its body, the saver's ttl
local name, expected, value, body, default = unpack(ARGV)
local held = redis.call('HGET', KEYS[1], name)
if token_of(held) ~= expected then
  -- The same request again, because its reply was lost: it succeeded the first time.
  if token_of(held) == token_of(value) then
    return { 1 }
  end
  return held and { 0, held, redis.call('HGET', KEYS[1], name .. ':body') } or { 0 }
end
local before, now = shared(name, held), shared(name, value)
local old, new = ranked(name, held), ranked(name, value)
if value == '' then
  drop(name, before)
  return { 1 }
end

-- Cells expire as if the thread was written now (its own time, or else the saver's), and not before the thread.
-- Read before anything is written: if the key belongs to another program, the script ends here.
local ttl = tonumber(redis.call('HGET', KEYS[3], 'ttl') or default) or 0
local left = redis.call('PTTL', KEYS[3])

-- Names before the cell: if the user may not write the cell (ACL), only names remain, which readers skip.
redis.call('ZADD', KEYS[2], 0, name)
if now or new then
  redis.call('ZADD', KEYS[2], 0, now or name, 0, new or name)
end
redis.call('HSET', KEYS[1], name, value)
if body == '' then
  redis.call('HDEL', KEYS[1], name .. ':body')
else
  redis.call('HSET', KEYS[1], name .. ':body', body)
end
if before and before ~= now then
  redis.call('ZREM', KEYS[2], before)
end
if old and old ~= new then
  redis.call('ZREM', KEYS[2], old)
end
if left == -1 then
  persist({ KEYS[1], KEYS[2] })
elseif math.max(ttl, left) > 0 then
  expire({ KEYS[1], KEYS[2] }, math.max(ttl, left))
end
return { 1 }
