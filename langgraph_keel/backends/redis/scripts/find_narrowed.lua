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

-- Where few are found, their places stand with the marks; else most of the newest are. An earlier Keel has listed threads
-- without marks: then there are fewer of these.
if redis.call('HLEN', KEYS[2]) == redis.call('ZCARD', KEYS[1]) then
  local found = {}
  for _, held in ipairs(redis.call('HVALS', KEYS[2])) do
    if fits(held) then
      table.insert(found, held:match('^%d*|[^|]*|[^|]*|[^|]*|(.*)$'))
      if #found > few then
        break
      end
    end
  end
  if #found <= few then
    return found
  end
end

local found, page, from = {}, nil, after == '' and '+' or '(' .. after
repeat
  page = redis.call('ZREVRANGEBYLEX', KEYS[1], from, '-', 'LIMIT', 0, 100)
  for _, member in ipairs(page) do
    if fits(redis.call('HGET', KEYS[2], member:match('%z(%w+)$'))) then
      table.insert(found, member)
      if #found == limit then
        return found
      end
    end
    from = '(' .. member
  end
until #page < 100
return found
