-- Store.scan of one thread. With: fields, order, parents, select
-- Grows with: the entries read until the page is full; for a rare namespace or id, the whole thread.
-- ARGV: as in select; then epoch and sequence number of the entry to continue after ('' for none), the limit
local thread = life(KEYS[1], get('thread'))
local after_epoch, after, limit = ARGV[5], ARGV[6], tonumber(ARGV[7])
-- The entries of a new life of the thread are later than all of the old one.
if not thread or (after ~= '' and after_epoch ~= thread.epoch) then
  return {}
end
local is_selected, found = selected(KEYS[1]), {}
each_entry(KEYS[1], after ~= '' and tonumber(after) or thread.seq + 1, function(seq, entry)
  local e = parse(entry)
  if is_selected(seq, e) then
    table.insert(found, { seq, entry, shown(KEYS[1], e.ns, e.parent) })
  end
  return #found >= limit
end)
return { thread.epoch, found }
