-- The threads of KEYS without a visible checkpoint: no hash, or only writes. With: fields
-- Grows with: the threads.
-- Returns their positions. Damaged threads are left out: their state is unknown.
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
