-- RedisStore.set_ttl. With: fields, expiry, life
-- Constant. ARGV: milliseconds, or 0 for no expiry. Returns whether the thread exists.
local thread = life(KEYS[1], get('thread'))
if not thread then
  return 0
end
redis.call('HSET', KEYS[1], 'ttl', ARGV[1])
arm(thread, ARGV[1])
return 1
