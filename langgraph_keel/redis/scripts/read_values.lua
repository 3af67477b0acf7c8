-- Store.read_values for entries of one thread. With: fields, rows
-- Grows with: the entries, their rows and batches.
-- ARGV: epoch, and the entries' sequence numbers. Replies with rows, and batches of those that are still there.
local thread = life(KEYS[1], get('thread'))
local found = {}
for n = 2, thread and thread.epoch == ARGV[1] and #ARGV or 0 do
  local entry = get('entry:' .. ARGV[n])
  if entry then
    local e = parse(entry)
    take(e.ns, e.refs)
    table.insert(found, { tonumber(ARGV[n]), batches(e.ns, e.id) })
  end
end
return { all_rows(), found }
