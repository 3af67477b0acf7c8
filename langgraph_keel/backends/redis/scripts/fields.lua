-- Shared. KEYS[1] is the hash of a thread. Its fields (ids percent-encoded, so that ':' and ' ' only ever separate):
--   thread                       epoch, last sequence number, visible entries, time and id as in the bucket's index
--   ttl                          milliseconds this thread lives after a write, or 0 for ever; over the saver's own
--   head:<ns>                    sequence number, state and id of the newest entry on the trunk (or of all)
--   id:<ns>:<id>                 sequence number of an entry, and "ghost" if it is one
--   entry:<seq>                  a line: state ns id parent run time token,first... refs...; after it the header
--   end:<ns>:<channel>           number of the next item
--   item:<ns>:<channel>:<lo>     count, a space, the body of a row
--   write:<ns>:<id>:<n>          task, a space, path, a space, the body of a batch
--   run:<run>                    entries of that run
-- A parent that was there at the put is kept as #<seq>: half the bytes of an id.
-- No sizes of scripts are bounded by Redis: each script says what its work grows with.
local function field(...)
  return table.concat({ ... }, ':')
end

local function get(name)
  return redis.call('HGET', KEYS[1], name)
end

-- The life of the thread as { epoch, seq, visible, member }, or nil if there is none.
-- A hash without this field is somebody else's: nothing has been written when the script ends with that error.
local function life(key, line)
  if line then
    local epoch, seq, visible, member = line:match('^(%w+) (%d+) (%d+) ?(.*)$')
    if not epoch then
      error('KEELDAMAGED the field "thread" of ' .. key)
    end
    return { epoch = epoch, seq = tonumber(seq), visible = tonumber(visible), member = member }
  end
  if redis.call('EXISTS', key) == 1 then
    error('KEELFOREIGN a hash that is no thread of Keel')
  end
end

local function life_line(life)
  -- Not string.format alone: its %s ends at the NUL inside a member.
  return string.format('%s %d %d ', life.epoch, life.seq, life.visible) .. life.member
end

local function parse(entry)
  local state, ns, id, parent, run, at, token, refs =
    entry:match('^(%l+) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ \n]*) ?([^\n]*)\n')
  return { state = state, ns = ns, id = id, parent = parent, run = run, at = at, token = token, refs = refs }
end

-- What tells an entry from any other that has its number.
local function token_of(e)
  return e.token:match('^[^,]*')
end

-- The entry that a stamp names, by its number and token; nil if it is no more.
local function named(place)
  local seq, token = place:match('^(%d+)%.(.*)$')
  local entry = seq and get('entry:' .. seq)
  local e = entry and parse(entry)
  if e and token_of(e) == token then
    return seq, entry, e
  end
end

-- HSET and HDEL take what Lua's stack holds (8000).
local function in_parts(command, key, args)
  for first = 1, #args, 4000 do
    redis.call(command, key, unpack(args, first, math.min(first + 3999, #args)))
  end
end
