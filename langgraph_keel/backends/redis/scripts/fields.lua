-- Shared. KEYS[1] is the hash of a thread. Its fields (ids percent-encoded, so that ':' and ' ' only ever separate):
--   thread                       epoch, last sequence number, visible entries, time and id as in the bucket's index
--   ttl                          milliseconds this thread lives after a write, or 0 for ever; over the saver's own
--   head:<ns>                    sequence number, state and id of the newest entry on the trunk (or of all)
--   id:<ns>:<id>                 sequence number of an entry, and "ghost" if it is one
--   entry:<seq>                  a line: checksum state ns id parent run time token,first... refs...; after it the header
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

-- Ends the script with an error that names what is damaged. Nothing may have been written before.
local function damaged(what, key)
  error('KEELDAMAGED ' .. what .. ' of ' .. (key or KEYS[1]))
end

-- Numbers of more digits do not change when a loop adds 1 to them.
local MOST_DIGITS = 15

-- The life of the thread as { epoch, seq, visible, member }, or nil if there is none.
-- A hash without this field is somebody else's: nothing has been written when the script ends with that error.
local function life(key, line)
  if line then
    local epoch, seq, visible, member = line:match('^(%w+) (%d+) (%d+) ?(.*)$')
    if not epoch or #seq > MOST_DIGITS or member ~= '' and not member:find('%z') then
      damaged('the field "thread"', key)
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

-- The checksum is of the words. The header has one of its own.
local function line_of(e)
  local words = table.concat({ e.state, e.ns, e.id, e.parent, e.run, e.at, e.token, e.refs }, ' ')
  return redis.sha1hex(words):sub(1, 8) .. ' ' .. words .. '\n'
end

local function parse(entry)
  local sum, words = (entry or ''):match('^(%x+) ([^\n]*)\n')
  local state, ns, id, parent, run, at, token, refs =
    (words or ''):match('^(%l+) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) (.*)$')
  if not state or redis.sha1hex(words):sub(1, 8) ~= sum then
    damaged('the line of a checkpoint')
  end
  return { state = state, ns = ns, id = id, parent = parent, run = run, at = at, token = token, refs = refs }
end

-- The sequence number and the entry that a field "head:<ns>" or "id:<ns>:<id>" names.
local function entry_at(name, value, ns, id)
  local seq = value:match('^%d+')
  local entry = seq and get('entry:' .. seq)
  local e = entry and parse(entry)
  if not e or e.ns ~= ns or e.id ~= id then
    damaged('the field "' .. name .. '"')
  end
  return seq, entry, e
end

-- The state and the id that a field "head:<ns>" names.
local function head_of(name, value)
  local state, id = value:match('^%d+ (%l+) (.*)$')
  if state ~= 'trunk' and state ~= 'branch' then
    damaged('the field "' .. name .. '"')
  end
  return state, id
end

-- Iterates over the runs (lo-hi) in a text.
local function runs_in(text)
  local next_run = text:gmatch('(%d+)-(%d+)')
  return function()
    local lo, hi = next_run()
    if lo and math.max(#lo, #hi) > MOST_DIGITS then
      damaged('the line of a checkpoint')
    end
    return tonumber(lo), tonumber(hi)
  end
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

-- Counts the entries of a run. A count that is damaged stays, so that the thread is still found by its run.
local function count_run(run, by)
  local held = get('run:' .. run) or '0'
  if not held:find('%D') and #held <= MOST_DIGITS and redis.call('HINCRBY', KEYS[1], 'run:' .. run, by) < 1 then
    redis.call('HDEL', KEYS[1], 'run:' .. run)
  end
end

-- HSET and HDEL take what Lua's stack holds (8000).
local function in_parts(command, key, args)
  for first = 1, #args, 4000 do
    redis.call(command, key, unpack(args, first, math.min(first + 3999, #args)))
  end
end
