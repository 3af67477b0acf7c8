-- Store.read_entry. With: fields, rows, parents, expiry, life
-- Grows with: the rows and batches of the entry.
-- ARGV: ns, id ('' for the head), the stamp of an entry whose rows the asker has (or ''); and to let the thread live on
-- because it is read: '1', the saver's ttl. Before that, the most bytes of the entry with its rows (or ''): these are
-- left out if there are more
local ns, id, known, most, refreshes, ttl = unpack(ARGV)
local found = redis.call('HMGET', KEYS[1], 'thread', id == '' and field('head', ns) or field('id', ns, id))
local thread = life(KEYS[1], found[1])
if not found[2] or (id ~= '' and found[2]:find(' ghost', 1, true)) then
  return {}
end
local seq = found[2]:match('^%d+')
local entry = get('entry:' .. seq)
local e = parse(entry)
if thread.epoch .. '.' .. seq .. '.' .. token_of(e) ~= known then
  take(ns, e.refs)
end
if most ~= '' and bytes_of_rows() + #entry > tonumber(most) then
  rows = {}
end
if refreshes then
  arm(thread, ttl)
end
return { thread.epoch, tonumber(seq), entry, shown(KEYS[1], ns, e.parent), all_rows(), batches(ns, e.id) }
