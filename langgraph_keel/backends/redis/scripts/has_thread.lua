-- RedisStore.copy_thread, where there is nothing to copy: whether there is the target. With: fields
-- Constant.
return life(KEYS[1], get('thread')) and 1 or 0
