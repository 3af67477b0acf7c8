-- Store.read_threads: what a listing says of the threads of KEYS. With: fields, lives
-- Grows with: the threads. ARGV: as in lives. A life that is no more is an empty list.
local reply = {}
for number, key in ipairs(KEYS) do
  local thread = indexed(number)
  local seq, id = (redis.call('HGET', key, 'head:') or ''):match('^(%d+) %l+ (.*)$')
  local entry = seq and redis.call('HGET', key, 'entry:' .. seq) or ''
  table.insert(reply, thread and { thread.visible, id or '', entry } or {})
end
return reply
