-- The threads that have shared a cell, in order; keys as in cells.
-- Grows with: the limit. ARGV: the thread that the page comes after ('' for none), the limit
local origins, from = {}, ARGV[1] == '' and '[@' or '[@' .. ARGV[1] .. ';'
while #origins < tonumber(ARGV[2]) do
  -- After all of an origin comes what begins with it and the character after the colon; after all of them, an A.
  local name = redis.call('ZRANGEBYLEX', KEYS[2], from, '(A', 'LIMIT', 0, 1)[1]
  if not name then
    break
  end
  local origin = name:match('^@([^:]*):')
  table.insert(origins, origin)
  from = '[@' .. origin .. ';'
end
return origins
