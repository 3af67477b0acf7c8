-- Store.replace_plain. With: fields, expiry, life
-- Grows with: the records of the request.
-- ARGV: epoch; then per record its field, the token of an entry, a row's item count or '', and its body.
local thread = life(KEYS[1], get('thread'))
if not thread or thread.epoch ~= ARGV[1] then
  return 0
end
-- The prefix before the body.
local heads = { entry = '^[^\n]*\n', item = '^%d+ ', write = '^[^ ]* [^ ]* ' }
local set = {}
for n = 2, #ARGV, 3 do
  local name, check, body = unpack(ARGV, n, n + 2)
  local kind, value = name:match('^%l+'), get(name)
  local head = value and value:match(heads[kind])
  local is_same = head and (kind == 'write' or kind == 'item' and head == check .. ' '
    or kind == 'entry' and token_of(parse(value)) == check)
  if is_same and value:sub(#head + 1, #head + 1) ~= '\3' then
    table.insert(set, name)
    table.insert(set, head .. body)
  end
end
if thread.member ~= '' then
  mark(thread, { seq = '', marks = '', late_of = '', late = '' })
end
in_parts('HSET', KEYS[1], set)
return 1
