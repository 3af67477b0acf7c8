-- Store.delete_all: keys of one bucket of a tenant.
-- Grows with: the keys; memory is freed in the background (UNLINK).
return redis.call('UNLINK', unpack(KEYS))
