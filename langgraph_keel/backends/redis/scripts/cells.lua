-- Shared. KEYS[1] is the hash of a thread's cells (of what all threads share: of the empty id's), KEYS[2] the names of
-- these cells, KEYS[3] the thread itself. Fields of the hash:
--   <kind>:<key>                 a line: token expiry origin, and of a cell with a rank: rank marks; after it the header
--   <kind>:<key>:body            the body, if there is one: apart, for listings do not touch it
-- The names are a sorted set, all scores 0: a hash is in no order, and would be read and sorted for every page of a
-- listing. It holds, in the order of their bytes:
--   <kind>:<key>
--   @<origin>:<kind>:<key>       besides, for a cell with an origin: what goes with a thread is found without a search
--   ^<kind>:<two blocks>:<number>:<two blocks>
--                                besides, for a cell with a rank, by its key of four blocks: the number falls as the rank
--                                grows, so the newest comes first
-- Neither key is there when there are no cells.
local function token_of(value)
  return value and value:match('^%w+') or ''
end

-- The name of a cell by its origin; nil if it has none.
local function shared(name, value)
  local origin = value and value:match('^[^ ]* [^ ]* ([^ \n]*)[^\n]*\n') or ''
  return origin ~= '' and '@' .. origin .. ':' .. name or nil
end

-- The name of a cell by its rank; nil if it has none. A number of Redis is exact up to 2^53.
local function ranked(name, value)
  local rank = value and value:match('^[^ \n]* [^ \n]* [^ \n]* (%d+)')
  return rank and ('^%s:%016.0f:%s'):format(name:sub(1, -65), 9e15 - rank, name:sub(-64)) or nil
end

local function drop(name, by_origin)
  local by_rank = ranked(name, redis.call('HGET', KEYS[1], name))
  redis.call('HDEL', KEYS[1], name, name .. ':body')
  redis.call('ZREM', KEYS[2], name, by_origin or name, by_rank or name)
end
