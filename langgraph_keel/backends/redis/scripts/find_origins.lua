-- The threads that wrote shared cells, in order; KEYS as in cells.
-- Grows with: the limit, and the names that are damaged. ARGV: the thread to continue after ('' for none), the limit
local origins, from = {}, ARGV[1] == '' and '[@' or '[@' .. ARGV[1] .. ';'
while #origins < tonumber(ARGV[2]) do
  -- The names of an origin end before its prefix with the character after ':'; all origins end before 'A'.
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
