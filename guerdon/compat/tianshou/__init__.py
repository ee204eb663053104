"""Tianshou's interfaces: ``guerdon.compat.tianshou.data``, ``env``, ``policy`` and ``trainer``."""

from guerdon.compat.tianshou.data import ListReplayBuffer

__all__ = ["ListReplayBuffer"]
