-- Shared. KEYS[1] is the hash of a thread. Its fields (ids are percent-encoded: ':' and ' ' are only separators):
--   thread                       epoch, last sequence number, visible entries, time and id as in the bucket's index
--   ttl                          milliseconds until expiry after a write, 0 for none; overrides the saver's
--   head:<ns>                    sequence number, state and id of the newest entry on the trunk (or of all)
--   id:<ns>:<id>                 sequence number of an entry, and "ghost" for a ghost
--   entry:<seq>                  a line: checksum state ns id parent run time token,first... refs...; then the header
--   end:<ns>:<channel>           number of the next item
--   item:<ns>:<channel>:<lo>     count, a space, the body of a row
--   write:<ns>:<id>:<n>          task, a space, path, a space, the body of a batch
--   run:<run>                    entries of that run
-- A parent that existed at the write is stored as #<seq>, half the bytes of an id.
-- Redis does not limit the work of a script: each script states what its work grows with.
local function field(...)
  return table.concat({ ... }, ':')
end

local function get(name)
  return redis.call('HGET', KEYS[1], name)
end

-- End the script with an error that names the damage. It must not have written anything yet.
local function damaged(what, key)
  error('KEELDAMAGED ' .. what .. ' of ' .. (key or KEYS[1]))
end

-- With more digits, adding 1 in a loop would not change a number.
local MOST_DIGITS = 15

-- The life of the thread as { epoch, seq, visible, member }, or nil if there is none. A hash without this field belongs
-- to another program: the script ends with an error before it writes anything.
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

-- The checksum covers the words. The header has its own.
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

-- The sequence number and entry in a field "head:<ns>" or "id:<ns>:<id>".
local function entry_at(name, value, ns, id)
  local seq = value:match('^%d+')
  local entry = seq and get('entry:' .. seq)
  local e = entry and parse(entry)
  if not e or e.ns ~= ns or e.id ~= id then
    damaged('the field "' .. name .. '"')
  end
  return seq, entry, e
end

-- The state and id in a field "head:<ns>".
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

-- The token that distinguishes entries with the same number.
local function token_of(e)
  return e.token:match('^[^,]*')
end

-- The entry of a stamp, by its number and token; nil if it no longer exists.
local function named(place)
  local seq, token = place:match('^(%d+)%.(.*)$')
  local entry = seq and get('entry:' .. seq)
  local e = entry and parse(entry)
  if e and token_of(e) == token then
    return seq, entry, e
  end
end

-- Counts the entries of a run. A damaged count is left, so that the thread is still found by its run.
local function count_run(run, by)
  local held = get('run:' .. run) or '0'
  if not held:find('%D') and #held <= MOST_DIGITS and redis.call('HINCRBY', KEYS[1], 'run:' .. run, by) < 1 then
    redis.call('HDEL', KEYS[1], 'run:' .. run)
  end
end

-- HSET and HDEL take as many arguments as Lua's stack holds (8000).
local function in_parts(command, key, args)
  for first = 1, #args, 4000 do
    redis.call(command, key, unpack(args, first, math.min(first + 3999, #args)))
  end
end
