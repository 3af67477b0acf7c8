"""The Redis backend: one hash per thread, one script per operation."""

from langgraph_keel.backends.redis.connection import Durability
from langgraph_keel.backends.redis.saver import RedisSaver, open_url

AsyncRedisSaver = RedisSaver

__all__ = ["AsyncRedisSaver", "Durability", "RedisSaver", "open_url"]
