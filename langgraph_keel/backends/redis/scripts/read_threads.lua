-- Store.read_threads: the summaries of the threads of KEYS. With: fields, parents, lives
-- Grows with: the threads. ARGV: as in lives. An ended life is an empty list, a damaged one a list of nil; the other
-- threads are still returned.
local function told(number, key)
  local thread = indexed(number)
  if not thread then
    return {}
  end
  local head = redis.call('HGET', key, 'head:')
  if not head then
    return { thread.visible, '' }
  end
  local _, id = head_of('head:', head)
  local seq = head:match('^%d+')
  local entry = redis.call('HGET', key, 'entry:' .. seq)
  local e = parse(entry)
  if e.ns ~= '' or e.id ~= id then
    damaged('the field "head:"', key)
  end
  return { thread.visible, id, thread.epoch, tonumber(seq), entry, shown(key, '', e.parent) }
end
local reply = {}
for number = 1, THREADS do
  local is_sound, found = pcall(told, number, KEYS[number])
  table.insert(reply, is_sound and found or { false })
end
return reply
