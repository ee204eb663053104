"""Batches, buffers, and the files they are kept in."""

from guerdon.data.batch import Batch

__all__ = ["Batch"]
