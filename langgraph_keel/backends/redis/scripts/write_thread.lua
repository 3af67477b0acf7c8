-- Store.copy_thread, second call: the target, whole or not at all. With: fields, expiry, life
-- Grows with: the thread.
-- ARGV: epoch, member ('' if the source has none), ttl, and the fields of the source
-- A copy with the same epoch was made by this request, before its reply was lost.
local thread = life(KEYS[1], get('thread'))
if thread then
  return thread.epoch == ARGV[1] and 1 or 0
end
local fields, ttl = {}, ARGV[3]
for n = 4, #ARGV, 2 do
  if ARGV[n] == 'thread' then
    thread = life(KEYS[1], ARGV[n + 1])
  elseif ARGV[n] == 'ttl' then
    ttl = ARGV[n + 1]
  end
  table.insert(fields, ARGV[n])
  table.insert(fields, ARGV[n + 1])
end
ttl = ttl_of(ttl)
thread.epoch, thread.member = ARGV[1], ''
index(thread, ARGV[2], { seq = '', marks = '', late_of = '', late = '' })
-- The later of two values of a field wins.
table.insert(fields, 'thread')
table.insert(fields, life_line(thread))
in_parts('HSET', KEYS[1], fields)
arm(thread, ttl)
return 1
