-- Shared. Rows of the item logs, and the batches of a checkpoint. With: fields
local MOST_ITEMS = 1024 -- core.rows.MOST_ITEMS: no row contains more
local taken = {} -- per log: first number -> count
local covered = {} -- per log: the range of the row looked up last
local walked = {} -- per log and run: whether it is done
local rows = {} -- the reply: per log its namespace and channel, then numbers and values in turn

local function row_at(log, lo)
  if taken[log][lo] then
    return taken[log][lo]
  end
  local value = get(log .. ':' .. string.format('%d', lo))
  if value then
    local count = tonumber(value:match('^%d+'))
    table.insert(rows[log], lo)
    table.insert(rows[log], value)
    -- An empty row is damage, which the reader will report; it would cause an endless loop here.
    taken[log][lo] = count ~= 0 and count or nil
    return taken[log][lo]
  end
end

-- The start of the row with an item: rows are found by their first number only, so search backwards.
local function start_of(log, number)
  local last = covered[log]
  if last and last[1] <= number and number < last[2] then
    return last[1]
  end
  for lo = number, math.max(0, number - MOST_ITEMS + 1), -1 do
    local count = row_at(log, lo)
    if count then
      return lo + count > number and lo or nil
    end
  end
end

-- Take the rows with the items of a run. Returns false at a gap, which is damage that the reader will report.
local function take_run(log, lo, hi)
  local at = start_of(log, lo)
  while at and at < hi do
    local count = row_at(log, at)
    covered[log] = count and { at, at + count }
    at = count and at + count
  end
  return at
end

local function take(ns, refs, wanted)
  for channel, runs in refs:gmatch('([^ :]+):%d+:([^ ]+)') do
    local log = field('item', ns, channel)
    if (not wanted or wanted[channel]) and not walked[log .. runs] then
      walked[log .. runs] = true
      taken[log] = taken[log] or {}
      rows[log] = rows[log] or { ns, channel }
      for lo, hi in runs_in(runs) do
        if not take_run(log, lo, hi) then
          break
        end
      end
    end
  end
end

local function all_rows()
  local reply = {}
  for _, log in pairs(rows) do
    table.insert(reply, log)
  end
  return reply
end

-- Batches are numbered without gaps: they are only removed together.
local function batches(ns, id)
  local found = {}
  local value = get(field('write', ns, id, 0))
  while value do
    table.insert(found, value)
    value = get(field('write', ns, id, #found))
  end
  return found
end
