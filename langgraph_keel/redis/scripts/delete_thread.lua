-- Store.delete_thread. With: fields, life
-- Constant: the memory is given back in the background (UNLINK).
local thread = life(KEYS[1], get('thread'))
if thread then
  index(thread, '')
  redis.call('UNLINK', KEYS[1])
end
return 1
