-- Shared. Parents as users see them. With: fields

-- The id of the parent, '' if it has no visible parent.
local function shown(key, ns, parent)
  if parent:sub(1, 1) == '#' then
    local entry = redis.call('HGET', key, 'entry:' .. parent:sub(2))
    local of = entry and parse(entry)
    return of and of.state ~= 'ghost' and of.id or ''
  end
  local seq = parent ~= '' and redis.call('HGET', key, field('id', ns, parent))
  return seq and not seq:find('ghost') and parent or ''
end
