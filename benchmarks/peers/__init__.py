"""The systems that are measured, each behind the same few methods."""

from __future__ import annotations

import importlib

from peers.base import Batches, MissingError, Store, System

NAMES = ("guerdon", "tianshou", "cpprb", "sb3", "torchrl")

__all__ = ["NAMES", "Batches", "MissingError", "Store", "System", "load"]


def load(names: list[str]) -> tuple[list[System], list[str]]:
    """The systems that can be imported, and a line about each that cannot."""
    systems, notes = [], []
    for name in names:
        try:
            systems.append(importlib.import_module(f"peers.{name}_").SYSTEM)
        except ImportError as error:
            notes.append(f"{name} is left out: {error}")
    return systems, notes
