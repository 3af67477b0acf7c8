-- Store.read_entry. With: fields, rows, parents, expiry, life
-- Grows with: the rows and batches of the entry.
-- ARGV: ns, id ('' for the head), the stamp of an entry whose rows the caller has (or ''); to refresh the expiry on
-- read: '1', the saver's ttl
local ns, id, known, refreshes, ttl = unpack(ARGV)
local name = id == '' and field('head', ns) or field('id', ns, id)
local found = redis.call('HMGET', KEYS[1], 'thread', name)
local thread = life(KEYS[1], found[1])
if not found[2] then
  return {}
end
local _
if id == '' then
  _, id = head_of(name, found[2])
end
local seq, entry, e = entry_at(name, found[2], ns, id)
if e.state == 'ghost' then
  return {}
end
if thread.epoch .. '.' .. seq .. '.' .. token_of(e) ~= known then
  take(ns, e.refs)
end
if refreshes then
  arm(thread, ttl_of(ttl))
end
return { thread.epoch, tonumber(seq), entry, shown(KEYS[1], ns, e.parent), all_rows(), batches(ns, e.id) }
