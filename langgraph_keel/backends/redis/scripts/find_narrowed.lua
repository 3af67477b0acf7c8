-- As find_threads, restricted to threads with some marks or without known marks; KEYS[2] is the search terms of the
-- bucket's threads (life.lua). A complete reply may contain more threads than requested, in any order, and threads
-- before the page.
-- Grows with: the threads of the bucket. ARGV: as in find_threads; then the marks.
local after, limit, few, share = ARGV[1], tonumber(ARGV[2]), 64, 2 * tonumber(ARGV[2])
local find = string.find

-- Searches the whole value: a mark that occurs in an id by chance is harmless.
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

-- Read the threads in order, until enough are found or that many were read; return whether there are more.
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

-- If few are found, their places are stored with the marks. An earlier Keel listed threads without marks: then there
-- are fewer marks than threads.
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

-- Either most of the first threads match, or few of all.
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
