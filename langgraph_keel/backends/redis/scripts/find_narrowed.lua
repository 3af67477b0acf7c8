-- As find_threads, of those threads that can be found by some marks, or of which nothing is known; KEYS[2] is what the
-- threads of the bucket can be found by (life.lua). They may be more than asked for, and come before the page.
-- Grows with: the threads of the bucket. ARGV: as there; then the marks.
local after, limit, few = ARGV[1], tonumber(ARGV[2]), 64

-- In all of what is held: that a mark stands in an id by chance does no harm.
local function fits(held)
  if not held or held:find('^%d*||') then
    return true
  end
  for number = 3, #ARGV do
    if not held:find(ARGV[number], 1, true) then
      return false
    end
  end
  return true
end

-- An earlier Keel has listed threads without this, or one of these was deleted by hand.
local is_whole = redis.call('HLEN', KEYS[2]) == redis.call('ZCARD', KEYS[1])
local found, known = {}, {}
if is_whole then
  for _, held in ipairs(redis.call('HVALS', KEYS[2])) do
    if fits(held) then
      local member = held:match('^%d*|[^|]*|[^|]*|[^|]*|(.*)$')
      table.insert(found, member)
      known[member] = true
    end
  end
  if #found <= few then
    return found
  end
end

local page, from = {}, after == '' and '+' or '(' .. after
found = {}
repeat
  page = redis.call('ZREVRANGEBYLEX', KEYS[1], from, '-', 'LIMIT', 0, 200)
  for _, member in ipairs(page) do
    local is_found = known[member]
    if not is_whole then
      is_found = fits(redis.call('HGET', KEYS[2], member:match('%z(%w+)$')))
    end
    if is_found then
      table.insert(found, member)
      if #found == limit then
        return found
      end
    end
    from = '(' .. member
  end
until #page < 200
return found
