-- Store.find_cells for prefixes of at least two blocks. KEYS as in cells.
-- Grows with: the names read, at most 2000. ARGV: the prefix of the names; the kind and the two blocks; the rank name
-- to continue after ('' for none); the limit; whether headers are omitted; marks
-- Returns the page, and the rank name to continue after ('' at the end).
local prefix, head, after, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local function is_found(name, value)
  if not value or name:sub(1, #prefix) ~= prefix then
    return false
  end
  local line = value:match('^[^\n]*')
  for n = 6, #ARGV do
    if not line:find(' ' .. ARGV[n], 1, true) then
      return false
    end
  end
  return true
end
local page, looked, from = {}, 0, after == '' and '[^' .. head .. ':' or '(' .. after
while #page < limit and looked < 2000 do
  local most = math.min(limit - #page, 500)
  local names = redis.call('ZRANGEBYLEX', KEYS[2], from, '(^' .. head .. ';', 'LIMIT', 0, most)
  for _, by_rank in ipairs(names) do
    local name = head .. by_rank:sub(-64)
    local value = redis.call('HGET', KEYS[1], name)
    if is_found(name, value) then
      table.insert(page, { name, ARGV[5] == '1' and value:match('^[^\n]*\n') or value })
    end
    after, from = by_rank, '(' .. by_rank
  end
  looked = looked + #names
  if #names < most then
    after = ''
    break
  end
end
return { page, after }
