-- As find_threads, of those threads that can be found by some marks, or of which nothing is known; KEYS[2] is what the
-- threads of the bucket can be found by (life.lua).
-- Grows with: the threads of the bucket. ARGV: as there; then the marks.
local from, found, page = ARGV[1] == '' and '+' or '(' .. ARGV[1], {}, nil
local limit = tonumber(ARGV[2])

local function fits(held)
  local marks, late = (held or ''):match('^%d*|([^|]*)|[^|]*|([^|]*)$')
  if not marks or marks == '' then
    return true
  end
  for number = 3, #ARGV do
    if not marks:find(ARGV[number], 1, true) and not late:find(ARGV[number], 1, true) then
      return false
    end
  end
  return true
end

repeat
  page = redis.call('ZREVRANGEBYLEX', KEYS[1], from, '-', 'LIMIT', 0, 1000)
  local epochs = {}
  for number, member in ipairs(page) do
    epochs[number] = member:match('[^%z]*$')
  end
  local held = #page > 0 and redis.call('HMGET', KEYS[2], unpack(epochs)) or {}
  for number, member in ipairs(page) do
    if fits(held[number]) then
      table.insert(found, member)
      if #found == limit then
        return found
      end
    end
    from = '(' .. member
  end
until #page < 1000
return found
