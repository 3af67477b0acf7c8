-- Which of the threads of KEYS show no checkpoint: there is no such hash, or it has writes only. With: fields
-- Grows with: the threads.
-- Replies with their positions.
-- What is damaged is none: nobody can tell.
local function is_stray(key)
  local thread = life(key, redis.call('HGET', key, 'thread'))
  return not thread or thread.visible == 0
end
local found = {}
for number, key in ipairs(KEYS) do
  local is_sound, stray = pcall(is_stray, key)
  if is_sound and stray then
    table.insert(found, number - 1)
  end
end
return found
