-- Shared. Let keys expire together, in that many milliseconds; returns when. Missing keys are ignored.
local function expire(keys, ttl)
  local time = redis.call('TIME')
  local at = time[1] * 1000 + math.floor(time[2] / 1000) + ttl
  for _, key in ipairs(keys) do
    redis.call('PEXPIREAT', key, at)
  end
  return at
end

local function persist(keys)
  for _, key in ipairs(keys) do
    redis.call('PERSIST', key)
  end
end
