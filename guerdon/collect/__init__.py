"""Policies meet environments."""

from guerdon.collect.collector import Collected, Collector

__all__ = ["Collected", "Collector"]
