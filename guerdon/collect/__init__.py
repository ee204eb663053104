"""Collection of transitions and labelled frames from environments."""

from guerdon.collect.collector import Collected, Collector
from guerdon.collect.shards import LocalShards, Shard, ShardedCollector, ShardedEnv, Shards

__all__ = [
    "Collected",
    "Collector",
    "LocalShards",
    "Shard",
    "ShardedCollector",
    "ShardedEnv",
    "Shards",
]
