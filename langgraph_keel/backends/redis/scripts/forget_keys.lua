-- Store.delete_all: keys of one bucket of a tenant.
-- Grows with their number; the memory is given back in the background (UNLINK).
return redis.call('UNLINK', unpack(KEYS))
