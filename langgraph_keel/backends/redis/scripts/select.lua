-- Shared. Select the entries of a query. With: fields, order
-- ARGV: has ns ('1' or ''), ns, id ('' for all), before ('' for none) ... the rest is the script's.

-- Ids before percent-encoding. Compares bytes, because Lua's own < depends on the server's locale.
local function raw(id)
  return (id:gsub('%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end))
end

local function less(a, b)
  for at = 1, math.min(#a, #b) do
    local x, y = a:byte(at), b:byte(at)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

local function selected(key)
  local has_ns, ns, id, before = ARGV[1] == '1', ARGV[2], ARGV[3], ARGV[4]
  local bounds = {}
  local function precedes(seq, e)
    if bounds[e.ns] == nil then
      local found = redis.call('HGET', key, field('id', e.ns, before))
      bounds[e.ns] = found and tonumber(found:match('^%d+')) or false
    end
    if bounds[e.ns] then
      return seq < bounds[e.ns]
    end
    return less(raw(e.id), raw(before))
  end
  return function(seq, e)
    return e.state ~= 'ghost' and (not has_ns or e.ns == ns) and (id == '' or e.id == id)
      and (before == '' or precedes(seq, e))
  end
end
