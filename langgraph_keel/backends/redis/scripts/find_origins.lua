-- The threads that have shared a cell, in order; keys as in cells.
-- Grows with: the limit, and the names that are damaged. ARGV: the thread that the page comes after ('' for none), the limit
local origins, from = {}, ARGV[1] == '' and '[@' or '[@' .. ARGV[1] .. ';'
while #origins < tonumber(ARGV[2]) do
  -- After all of an origin comes what begins with it and the character after the colon; after all of them, an A.
  local name = redis.call('ZRANGEBYLEX', KEYS[2], from, '(A', 'LIMIT', 0, 1)[1]
  if not name then
    break
  end
  local origin = name:match('^@([^:]*):')
  if origin then
    table.insert(origins, origin)
  end
  from = origin and '[@' .. origin .. ';' or '(' .. name
end
return origins
