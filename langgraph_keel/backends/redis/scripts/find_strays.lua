-- Which of the threads of KEYS show no checkpoint: there is no such hash, or it has writes only. With: fields
-- Grows with: the threads.
-- Replies with their positions.
local found = {}
for number, key in ipairs(KEYS) do
  local thread = life(key, redis.call('HGET', key, 'thread'))
  if not thread or thread.visible == 0 then
    table.insert(found, number - 1)
  end
end
return found
