"""`ListReplayBuffer`: a buffer that never forgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guerdon.data.replay_buffer import Finished, ReplayBuffer

if TYPE_CHECKING:
    import numpy as np

    from guerdon.data.intake import Checked

_FIRST_SLOTS = 256


class ListReplayBuffer(ReplayBuffer):
    """A buffer that grows like a list instead of overwriting its oldest rows.

    Args:
        n_envs: As for `ReplayBuffer`, and so are the other options; there is no size.
        **options: See `ReplayBuffer`.
    """

    _wraps = False

    def __init__(self, n_envs: int = 1, **options: Any) -> None:
        super().__init__(_FIRST_SLOTS * n_envs, n_envs, **options)

    def options(self) -> dict[str, Any]:
        """See `ReplayBuffer`; without a size."""
        return {name: value for name, value in super().options().items() if name != "size"}

    def _write(self, envs: np.ndarray, checked: Checked) -> Finished:
        if int(self._ring.written.max()) == self._ring.slots:
            self._ring.grow(2 * self._ring.slots)
        return super()._write(envs, checked)
