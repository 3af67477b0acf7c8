-- Remove ended lives from the bucket's indexes (KEYS[1] to KEYS[3]): expired, deleted by hand, or followed by another.
-- With: fields
-- Grows with: the threads. ARGV: their members; the other KEYS are their hashes.
for number, member in ipairs(ARGV) do
  local key = KEYS[number + 3]
  local thread = life(key, redis.call('HGET', key, 'thread'))
  if not thread or thread.epoch ~= member:match('[^%z]*$') then
    redis.call('ZREM', KEYS[1], member)
    redis.call('ZREM', KEYS[2], member)
    redis.call('HDEL', KEYS[3], member:match('[^%z]*$'))
  end
end
return 1
