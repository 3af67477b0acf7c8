-- Store.delete_thread, if no entry was written after a given one. With: fields, expiry, life, order
-- Constant; after removals, it grows with the numbers above that entry. ARGV: epoch, place of the entry
-- Returns 1 if the thread was deleted.
local thread = life(KEYS[1], get('thread'))
local seq, _, last = named(ARGV[2])
if not thread or thread.epoch ~= ARGV[1] or not last or last.state == 'ghost' then
  return 0
end
local newest
each_entry(KEYS[1], thread.seq + 1, function(number, entry)
  newest = number
  return parse(entry).state ~= 'ghost'
end)
if newest ~= tonumber(seq) then
  return 0
end
index(thread, '')
redis.call('UNLINK', KEYS[1], KEYS[4], KEYS[5])
return 1
