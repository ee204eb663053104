"""nerveX: a manager of buffers with limits on use, age and rate."""

from guerdon.compat.nervex.buffer_manager import BufferManager
from guerdon.compat.nervex.limits import Limits

__all__ = ["BufferManager", "Limits"]
