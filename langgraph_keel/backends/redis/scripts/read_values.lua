-- Store.read_values for entries of one thread. With: fields, rows
-- Grows with: the entries, their rows and batches.
-- ARGV: epoch, and the entries' places. Returns rows, and batches of entries that still exist.
local thread = life(KEYS[1], get('thread'))
local found = {}
for n = 2, thread and thread.epoch == ARGV[1] and #ARGV or 0 do
  local seq, _, e = named(ARGV[n])
  if e then
    take(e.ns, e.refs)
    table.insert(found, { tonumber(seq), batches(e.ns, e.id) })
  end
end
return { all_rows(), found }
