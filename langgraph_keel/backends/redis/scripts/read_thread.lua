-- Store.copy_thread, first of two calls: all fields of the source. With: fields
-- Grows with: the thread, which is the reply.
if life(KEYS[1], get('thread')) then
  return redis.call('HGETALL', KEYS[1])
end
return {}
