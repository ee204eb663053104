"""`BufferManager`: `MixedReplay` with limits on the use of rows, and statistics."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from guerdon.compat.nervex.item_buffer import ItemBuffer
from guerdon.compat.nervex.limits import INFINITY, Ledger, Limits
from guerdon.data.mixed import MixedReplay
from guerdon.data.replay_buffer import ReplayBuffer

# nerveX's names of settings for a buffer of items.
_SETTINGS = {
    "meta_maxlen": "size",
    "replay_buffer_size": "size",
    "max_reuse": "max_use",
    "min_sample_ratio": "min_fill",
}


class BufferManager(MixedReplay):
    """Samples from several buffers by ratio, within limits.

    >>> manager = BufferManager(
    ...     {"agent": ReplayBuffer(1000), "demonstrations": ReplayBuffer(1000)},
    ...     ratio={"agent": 3, "demonstrations": 1},
    ...     limits={"agent": Limits(max_use=8)},
    ... )

    Given a dictionary of settings instead of buffers, it has one buffer of whole items, as in
    ``BufferManager({"meta_maxlen": 10})``; then `sample` returns a list of them.

    Args:
        buffers: Buffers by name, or settings (``meta_maxlen``, ``max_use``, ...).
        ratio: Relative share of each buffer in a batch; equal by default.
        limits: Limits of all buffers, or by name.
        seed: Random seed, or a generator, for rounding shares.
        clock: Returns seconds, for limits on rates.
    """

    def __init__(
        self,
        buffers: Mapping[str, Any],
        ratio: Mapping[str, float] | None = None,
        limits: Limits | Mapping[str, Limits] | None = None,
        seed: int | np.random.Generator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not all(isinstance(buffer, ReplayBuffer) for buffer in buffers.values()):
            if limits is not None:
                raise ValueError("settings include limits: set them there, not in `limits`")
            buffers, limits = _items_from_settings(buffers, seed)
        super().__init__(buffers, ratio, seed)
        if limits is None or isinstance(limits, Limits):
            limits = dict.fromkeys(self.names, limits or Limits())
        self._check_names(limits, "limits")
        self._ledgers = {name: Ledger(limits.get(name, Limits())) for name in self.names}
        self._clock = clock

    def add(
        self,
        batch: Any = None,
        env_ids: Any = None,
        *,
        buffer: str | None = None,
        version: int = 0,
        **fields: Any,
    ) -> np.ndarray | None:
        """Add transitions to one of the buffers, as `ReplayBuffer.add` does.

        Args:
            batch: See `ReplayBuffer.add`.
            env_ids: See `ReplayBuffer.add`.
            buffer: Name of the buffer; the first by default.
            version: Training iteration of the policy that collected them, for `max_staleness`.
            **fields: See `ReplayBuffer.add`.

        Returns:
            The indices in that buffer, or None if the rate limit does not allow it now.
        """
        name, member, ledger = self._member(buffer)
        if isinstance(member, ItemBuffer):
            raise TypeError(f"buffer {name!r} has whole items: use push_data")
        now = self._clock()
        if not ledger.may_push(now):
            return None
        rows: np.ndarray = member.add(batch, env_ids, **fields)
        ledger.make_room(member.size, member.n_envs)
        ledger.pushed(now, rows, version)
        return rows

    def push_data(self, data: Any, buffer: str | None = None, version: int = 0) -> bool:
        """Add one item (a dictionary) or a list of them.

        Returns:
            Whether all were added; the rate limit may not allow it now.
        """
        _, member, ledger = self._member(buffer)
        for item in data if isinstance(data, list | tuple) else [data]:
            if isinstance(member, ReplayBuffer):
                if self.add(item, buffer=buffer, version=version) is None:
                    return False
                continue
            now = self._clock()
            if not ledger.may_push(now):
                return False
            ledger.make_room(member.size)
            ledger.pushed(now, np.array([member.add(item)]), version)
        return True

    def sample(
        self,
        batch_size: int,
        length: int = 1,
        fields: Sequence[str] | None = None,
        version: int = 0,
    ) -> Any:
        """Draw a batch from all buffers, by ratio.

        Args:
            batch_size: Number of rows, or segments.
            length: See `ReplayBuffer.sample`.
            fields: See `ReplayBuffer.sample`; by default the fields that all buffers have.
            version: Training iteration, for `max_staleness`.

        Returns:
            The batch and its indices (a list for a buffer of items), or None if a buffer has too
            few rows, or its rate limit does not allow it now.
        """
        counts = self._counts(batch_size)
        if not self._may_sample(counts, version):
            return None
        items = self.buffers.get("items")
        if isinstance(items, ItemBuffer):
            rows = items.sample_indices(batch_size)
            found = self._read_items(items, rows, version)
            self._note_sampled("items", rows, version)
            return found
        batch, indices = self._sample(counts, length, fields)
        for name, (_, rows) in self.split(indices).items():
            if len(rows):
                self._note_sampled(name, rows, version)
        return batch, indices

    def _may_sample(self, counts: dict[str, int], version: int) -> bool:
        """Drop stale rows, then check the limits of every buffer."""
        allowed = True
        for name, count in counts.items():
            member, ledger = self.buffers[name], self._ledgers[name]
            ledger.make_room(member.size, member.n_envs)
            if ledger.limits.max_staleness < INFINITY:
                stale = ledger.stale(member.stored_rows(), version)
                if len(stale):
                    member.discard(stale)
                    ledger.counts["removed"] += len(stale)
            held = len(member)
            enough = held >= count or not isinstance(member, ItemBuffer)  # items are drawn once
            if count and not (enough and ledger.may_sample(self._clock(), held, count)):
                ledger.counts["refused_samples"] += 1
                allowed = False
        return allowed

    def _read_items(self, items: ItemBuffer, rows: np.ndarray, version: int) -> list[Any]:
        ledger = self._ledgers["items"]
        return [
            {
                **items[row],
                "use": int(ledger.use[row]) + 1,
                "staleness": int(version - ledger.version[row]),
            }
            for row in rows
        ]

    def _note_sampled(self, name: str, rows: np.ndarray, version: int) -> None:
        used_up = self._ledgers[name].sampled(self._clock(), rows, version)
        if len(used_up):
            self.buffers[name].discard(used_up)

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return counts of rows, refusals, and use and age of the last sample, by buffer."""
        return {
            name: ledger.statistics(len(self.buffers[name]))
            for name, ledger in self._ledgers.items()
        }

    def _member(self, name: str | None) -> tuple[str, Any, Ledger]:
        name = self.names[0] if name is None else name
        return name, self[name], self._ledgers[name]

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume: buffers, generator, use, age and statistics."""
        meta: dict[str, Any] = {
            "generator": self._generator.bit_generator.state,
            "buffers": {},
            "ledgers": {},
        }
        arrays: dict[tuple[str, ...], Any] = {}
        for name, ledger in self._ledgers.items():
            state = self.buffers[name].training_state()
            meta["buffers"][name] = state["meta"]
            arrays |= {(name, *path): array for path, array in state["arrays"].items()}
            arrays[name, "ledger", "use"] = ledger.use.copy()
            arrays[name, "ledger", "version"] = ledger.version.copy()
            meta["ledgers"][name] = {"counts": dict(ledger.counts), "last": dict(ledger.last)}
        return {"meta": meta, "arrays": arrays}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore `training_state`; rates start again, since clocks differ."""
        saved = state["meta"]["buffers"]
        self._check_names(saved, "the saved state")
        missing = [name for name in self.names if name not in saved]
        if missing:
            raise KeyError(f"the saved state has no buffer {missing[0]!r}")
        for name, buffer in self.buffers.items():
            arrays = {
                path[1:]: array
                for path, array in state["arrays"].items()
                if path[0] == name and path[1] != "ledger"
            }
            buffer.load_training_state({"meta": saved[name], "arrays": arrays})
        for name, ledger in self._ledgers.items():
            meta = state["meta"]["ledgers"][name]
            ledger.use = state["arrays"][name, "ledger", "use"].copy()
            ledger.version = state["arrays"][name, "ledger", "version"].copy()
            ledger.counts, ledger.last = dict(meta["counts"]), dict(meta["last"])
            ledger.forget_rate()
        self._generator.bit_generator.state = state["meta"]["generator"]


def _items_from_settings(
    settings: Mapping[str, Any], seed: int | np.random.Generator | None
) -> tuple[dict[str, ItemBuffer], Limits]:
    named = {_SETTINGS.get(key, key): value for key, value in settings.items()}
    size = named.pop("size", None)
    known = set(Limits.__dataclass_fields__)
    odd = sorted(set(named) - known, key=lambda key: isinstance(named[key], ReplayBuffer))
    if size is None or odd:
        wrong = f"{odd[0]!r} is neither" if odd else "'meta_maxlen' is missing"
        raise ValueError(
            "a BufferManager is made of buffers, or of settings ('meta_maxlen' and any of "
            f"{', '.join(sorted(known))}): {wrong}"
        )
    return {"items": ItemBuffer(size, seed)}, Limits(**named)
