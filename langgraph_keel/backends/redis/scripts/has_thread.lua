-- RedisStore.copy_thread of an empty thread: whether the target exists. With: fields
-- Constant.
return life(KEYS[1], get('thread')) and 1 or 0
