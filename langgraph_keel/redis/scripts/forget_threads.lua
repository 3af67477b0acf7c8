-- Take threads out of the bucket's indexes (KEYS[1], KEYS[2]) that are no more: expired, or deleted by hand.
-- Grows with: the threads. ARGV: their members; the other KEYS are their hashes.
for number, member in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[number + 2]) == 0 then
    redis.call('ZREM', KEYS[1], member)
    redis.call('ZREM', KEYS[2], member)
  end
end
return 1
