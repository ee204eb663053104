"""Collection of transitions and labelled frames from environments."""

from guerdon.collect.collector import Collected, Collector

__all__ = ["Collected", "Collector"]
