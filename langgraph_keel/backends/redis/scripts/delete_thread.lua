-- Store.delete_thread. With: fields, expiry, life
-- Constant: the memory is given back in the background (UNLINK). Cells go also where there is no thread.
-- Also what is damaged; the index forgets it with the next listing. Not what is somebody else's.
local line = get('thread')
local is_sound, thread = pcall(life, KEYS[1], line)
if not is_sound and not line then
  error(thread)
elseif is_sound and thread then
  index(thread, '')
end
redis.call('UNLINK', KEYS[1], KEYS[4], KEYS[5])
return 1
