-- Store.read_threads: what a listing says of the threads of KEYS. With: fields
-- Grows with: the threads. A thread that expired is an empty list.
local reply = {}
for _, key in ipairs(KEYS) do
  local found = redis.call('HMGET', key, 'thread', 'head:')
  local thread = life(key, found[1])
  local seq, id = (found[2] or ''):match('^(%d+) %l+ (.*)$')
  local entry = seq and redis.call('HGET', key, 'entry:' .. seq) or ''
  table.insert(reply, thread and { thread.visible, id or '', entry } or {})
end
return reply
