-- Store.delete_thread. With: fields, expiry, life
-- Constant: memory is freed in the background (UNLINK). Cells are deleted even if there is no thread. A damaged thread
-- is deleted too, and the next listing removes it from the index. Keys of other programs are not.
local line = get('thread')
local is_sound, thread = pcall(life, KEYS[1], line)
if not is_sound and not line then
  error(thread)
elseif is_sound and thread then
  index(thread, '')
end
redis.call('UNLINK', KEYS[1], KEYS[4], KEYS[5])
return 1
