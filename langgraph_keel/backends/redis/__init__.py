"""The Redis backend: one hash per thread, one script per verb; Redis from 6.2, Valkey, Cluster and Sentinel."""

from langgraph_keel.backends.redis.connection import Durability
from langgraph_keel.backends.redis.saver import RedisSaver, open_url

AsyncRedisSaver = RedisSaver

__all__ = ["AsyncRedisSaver", "Durability", "RedisSaver", "open_url"]
