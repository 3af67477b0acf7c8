-- Store.delete_thread. With: fields, expiry, life
-- Constant: the memory is given back in the background (UNLINK). Cells go also where there is no thread.
local thread = life(KEYS[1], get('thread'))
if thread then
  index(thread, '')
end
redis.call('UNLINK', KEYS[1], KEYS[4], KEYS[5])
return 1
