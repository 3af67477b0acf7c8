-- Shared. KEYS[1] is the hash of a thread's cells (shared cells: of the empty id), KEYS[2] the names of these cells,
-- KEYS[3] the thread itself. Fields of the hash:
--   <kind>:<key>                 a line: token expiry origin and, for a cell with a rank: rank marks; then the header
--   <kind>:<key>:body            the body, if any; separate, because listings do not read it
-- The names are a sorted set with scores 0: a hash has no order, and would be read and sorted for every page of a
-- listing. Its members, in the order of their bytes:
--   <kind>:<key>
--   @<origin>:<kind>:<key>       also, for a cell with an origin: a deletion of the thread finds it without a search
--   ^<kind>:<two blocks>:<number>:<two blocks>
--                                also, for a cell with a rank, from its key of four blocks: the number falls as the
--                                rank grows, so the newest is first
-- Without cells, neither key exists.
local function token_of(value)
  return value and value:match('^%w+') or ''
end

-- The name of a cell with its origin; nil without an origin.
local function shared(name, value)
  local origin = value and value:match('^[^ ]* [^ ]* ([^ \n]*)[^\n]*\n') or ''
  return origin ~= '' and '@' .. origin .. ':' .. name or nil
end

-- The name of a cell with its rank; nil without a rank. Redis numbers are exact up to 2^53.
local function ranked(name, value)
  local rank = value and value:match('^[^ \n]* [^ \n]* [^ \n]* (%d+)')
  return rank and ('^%s:%016.0f:%s'):format(name:sub(1, -65), 9e15 - rank, name:sub(-64)) or nil
end

local function drop(name, by_origin)
  local by_rank = ranked(name, redis.call('HGET', KEYS[1], name))
  redis.call('HDEL', KEYS[1], name, name .. ':body')
  redis.call('ZREM', KEYS[2], name, by_origin or name, by_rank or name)
end
