-- Store.copy_thread, the first of two: all fields of the source. With: fields
-- Grows with: the thread; all of it is the reply.
if life(KEYS[1], get('thread')) then
  return redis.call('HGETALL', KEYS[1])
end
return {}
