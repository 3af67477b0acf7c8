-- As find_threads, of those threads that can be found by some marks, or of which nothing is known; KEYS[2] is what the
-- threads of the bucket can be found by (life.lua). If these are all, they may be more than asked for, in any order, and
-- come before the page.
-- Grows with: the threads of the bucket. ARGV: as there; then the marks.
local after, limit, few, share = ARGV[1], tonumber(ARGV[2]), 64, 2 * tonumber(ARGV[2])
local find = string.find

-- In all of what is held: that a mark stands in an id by chance does no harm.
local function fits(held)
  for number = 4, #ARGV do
    if not find(held, ARGV[number], 1, true) then
      return find(held, '^%d*||') or find(held, '^%d*|[^|]*|[^|]*|%?')
    end
  end
  return true
end

local read, first, last = 'ZREVRANGEBYLEX', '+', '-'
if ARGV[3] == 'up' then
  read, first, last = 'ZRANGEBYLEX', '-', '+'
end
local found, from, looked = {}, after == '' and first or '(' .. after, 0

-- Look at the threads in order, until enough are found or so many were looked at; return whether there are more.
local function look(most)
  repeat
    local page = redis.call(read, KEYS[1], from, last, 'LIMIT', 0, share)
    for _, member in ipairs(page) do
      local held = redis.call('HGET', KEYS[2], member:match('[^%z]*$'))
      if not held or fits(held) then
        table.insert(found, member)
        if #found == limit then
          return true
        end
      end
      from = '(' .. member
    end
    looked = looked + #page
  until #page == 0 or #page < share or looked >= most
  return looked >= most
end

-- Where few are found, their places stand with the marks. An earlier Keel has listed threads without marks: then there
-- are fewer of these.
local function read_few()
  local few_found = {}
  if redis.call('HLEN', KEYS[2]) ~= redis.call('ZCARD', KEYS[1]) then
    return
  end
  for _, held in ipairs(redis.call('HVALS', KEYS[2])) do
    if fits(held) then
      table.insert(few_found, held:match('^%d*|[^|]*|[^|]*|[^|]*|(.*)$'))
      if #few_found > few then
        return
      end
    end
  end
  return few_found
end

-- Most of those that come first are asked for, or few of all.
if not look(share) then
  return { 1, found }
elseif #found == limit then
  return { 0, found }
end
local all = read_few()
if all then
  return { 1, all }
end
return { look(math.huge) and 0 or 1, found }
