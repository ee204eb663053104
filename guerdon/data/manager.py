"""`BufferManager`: several named buffers behind one `sample`, with limits and statistics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.batch import Batch
from guerdon.data.item_buffer import ItemBuffer
from guerdon.data.leaves import to_numpy
from guerdon.data.limits import INFINITY, Ledger, Limits
from guerdon.data.prioritized import PrioritizedReplayBuffer
from guerdon.data.replay_buffer import Finished, ReplayBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# An index of the manager is (number of the buffer << 40) + row.
_ROW_BITS = 40

# Fields that a batch has in any case; others only if all buffers have them alike.
_REQUIRED = ("obs", "act", "rew")

# Settings of one buffer of items, by the names they go by elsewhere.
_SETTINGS = {
    "meta_maxlen": "size",
    "replay_buffer_size": "size",
    "max_reuse": "max_use",
    "min_sample_ratio": "min_fill",
}


class BufferManager:
    """Samples from several buffers by ratio, and says of each row where it came from.

    >>> manager = BufferManager(
    ...     {"agent": ReplayBuffer(1000), "demonstrations": ReplayBuffer(1000)},
    ...     ratio={"agent": 3, "demonstrations": 1},
    ... )

    A batch has ``source``, the number of the buffer in `names`, for every row.

    With a dictionary of settings instead of buffers, there is one buffer of whole items, as for
    ``BufferManager({"meta_maxlen": 10})``; then `sample` gives a list of them.

    Args:
        buffers: The buffers by name, or settings (``meta_maxlen``, ``max_use``, ...).
        ratio: The share of each buffer in a batch, as any numbers; equal by default.
        limits: For all buffers, or by name.
        seed: Of the generator that rounds shares, or that generator.
        clock: Tells seconds, for limits on rates.
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
                raise ValueError("settings hold limits too: put them there, not into `limits`")
            buffers, limits = _items_from_settings(buffers, seed)
        if not buffers:
            raise ValueError("a BufferManager needs at least one buffer")
        self.buffers: dict[str, Any] = dict(buffers)
        self.names = tuple(self.buffers)
        if limits is None or isinstance(limits, Limits):
            limits = dict.fromkeys(self.names, limits or Limits())
        self._check_names(limits, "limits")
        self._ledgers = {name: Ledger(limits.get(name, Limits())) for name in self.names}
        self._shares = self._checked_shares(ratio or dict.fromkeys(self.names, 1.0))
        self._generator = np.random.default_rng(seed)
        self._clock = clock

    def __len__(self) -> int:
        return sum(len(buffer) for buffer in self.buffers.values())

    def __getitem__(self, key: Any) -> Any:
        """A buffer by its name, or the rows of indices, as `sample` gives them."""
        if not isinstance(key, str):
            return self._read(key, self._common_fields())
        self._check_names([key], "this")
        return self.buffers[key]

    # --- writing

    def add(
        self,
        batch: Any = None,
        env_ids: Any = None,
        *,
        buffer: str | None = None,
        version: int = 0,
        **fields: Any,
    ) -> Finished | None:
        """Adds transitions to one of the buffers, as `ReplayBuffer.add` does.

        Args:
            batch: See `ReplayBuffer.add`.
            env_ids: See `ReplayBuffer.add`.
            buffer: Which buffer; the first by default.
            version: The training iteration whose policy made them, for `max_staleness`.
            **fields: See `ReplayBuffer.add`.

        Returns:
            The episodes that ended, or None if the rate does not allow to add anything now.
        """
        name, member, ledger = self._member(buffer)
        if isinstance(member, ItemBuffer):
            raise TypeError(f"buffer {name!r} holds whole items: use push_data")
        now = self._clock()
        if not ledger.may_push(now):
            return None
        finished: Finished = member.add(batch, env_ids, **fields)
        ledger.make_room(member.size)
        ledger.pushed(now, member.newest(env_ids), version)
        return finished

    def push_data(self, data: Any, buffer: str | None = None, version: int = 0) -> bool:
        """Adds one item (a dictionary) or a list of them.

        Returns:
            Whether all were added; the rate may not allow it now.
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

    # --- reading

    def sample(
        self,
        batch_size: int,
        length: int = 1,
        fields: Sequence[str] | None = None,
        version: int = 0,
    ) -> Any:
        """Draws a batch from all buffers, by ratio.

        Args:
            batch_size: Rows, or segments, in all.
            length: See `ReplayBuffer.sample`.
            fields: See `ReplayBuffer.sample`; by default what all buffers have.
            version: The training iteration, for `max_staleness`.

        Returns:
            The batch and its indices (a list if the buffer is one of items), or None if a buffer
            has too few rows, or its rate does not allow it now.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, but has to be 1 or more")
        counts = self._counts(batch_size)
        if not self._may_sample(counts, version):
            return None
        parts: list[tuple[int, Any, np.ndarray]] = []
        items: list[dict[str, Any]] = []
        drawn: dict[str, np.ndarray] = {}
        for number, (name, count) in enumerate(counts.items()):
            if not count:
                continue
            member, ledger = self.buffers[name], self._ledgers[name]
            rows = drawn[name] = member.sample_indices(count)
            if isinstance(member, ItemBuffer):
                items += self._read_items(member, ledger, rows, version)
            else:
                names = self._common_fields() if fields is None else fields
                batch, indices = member._sampled(rows, length, names)
                parts.append((number, batch, indices))
        result = items if not parts else self._joined(parts, segments=length > 1)
        for name, rows in drawn.items():  # noted only now, when nothing can fail any more
            used_up = self._ledgers[name].sampled(self._clock(), rows, version)
            if len(used_up):
                self.buffers[name].discard(used_up)
        return result

    def _may_sample(self, counts: dict[str, int], version: int) -> bool:
        """Drops what has grown stale, then asks every buffer."""
        allowed = True
        for name, count in counts.items():
            member, ledger = self.buffers[name], self._ledgers[name]
            ledger.make_room(member.size)
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

    def _read_items(
        self, member: ItemBuffer, ledger: Ledger, rows: np.ndarray, version: int
    ) -> list[dict[str, Any]]:
        return [
            {
                **member[row],
                "use": int(ledger.use[row]) + 1,
                "staleness": int(version - ledger.version[row]),
            }
            for row in rows
        ]

    def _joined(self, parts: list[tuple[int, Any, np.ndarray]], segments: bool) -> Any:
        axis = 1 if segments else 0
        weighted = any("weight" in batch for _, batch, _ in parts)
        batches, weights, places = [], [], []
        for number, batch, indices in parts:
            convert = self.buffers[self.names[number]]._storage.convert
            batch.source = convert(np.full(indices.shape, number))
            ones = np.ones(indices.shape[-1], np.float32)
            weights.append(batch.pop("weight") if "weight" in batch else convert(ones))
            batches.append(batch)
            places.append(indices + (number << _ROW_BITS))
        joined = Batch.cat(batches, axis)
        if weighted:
            joined.weight = Batch.cat([Batch(weight=weight) for weight in weights]).weight
        return joined, np.concatenate(places, axis)

    def _common_fields(self) -> list[str]:
        """The fields that all buffers have, with the same keys inside, and those that all need."""
        readers = [buffer._reader for buffer in self.buffers.values() if len(buffer)]
        layouts = [
            {name: sorted(c.path for c in columns) for name, columns in reader.groups().items()}
            for reader in readers
        ]
        first = layouts[0]
        return [
            name
            for name in readers[0].names()
            if name in _REQUIRED or all(layout.get(name) == first.get(name) for layout in layouts)
        ]

    def rows(self, index: Any) -> np.ndarray:
        """Indices as an array; rows are checked when they are read."""
        return np.asarray(index)

    def get(self, index: Any, key: str, stack_num: int | None = None) -> Any:
        """One field at indices; see `ReplayBuffer.get`."""
        return self._read(index, (key,), stack_num)[key]

    def prev(self, index: Any) -> np.ndarray:
        """See `ReplayBuffer.prev`."""
        return self._walk(index, "prev")

    def next(self, index: Any) -> np.ndarray:
        """See `ReplayBuffer.next`."""
        return self._walk(index, "next")

    def _walk(self, index: Any, method: str) -> np.ndarray:
        index = np.asarray(index)
        walked: np.ndarray = index.reshape(-1).copy()
        for name, (positions, rows) in self.split(walked).items():
            walked[positions] += getattr(self.buffers[name], method)(rows) - rows
        return walked.reshape(index.shape)

    def _read(self, index: Any, fields: Sequence[str], stack_num: int | None = None) -> Any:
        index = np.asarray(index)
        parts, order = [], []
        for number, (name, (positions, rows)) in enumerate(self.split(index.reshape(-1)).items()):
            if len(rows):
                member = self.buffers[name]
                read = member._reader.read(member.rows(rows), fields, stack_num)
                parts.append((number, read, rows))
                order.append(positions)
        batch = self._joined(parts, segments=False)[0][np.argsort(np.concatenate(order))]
        return batch.apply(lambda leaf: leaf.reshape(*index.shape, *leaf.shape[1:]))

    def split(self, indices: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Sorts indices by buffer: the positions among `indices`, and the rows there.

        Of segments, these are the first rows.
        """
        first = indices[0] if indices.ndim == 2 else indices
        found = {}
        for number, name in enumerate(self.names):
            positions = np.flatnonzero(first >> _ROW_BITS == number)
            found[name] = (positions, first[positions] & ((1 << _ROW_BITS) - 1))
        return found

    def update_weight(self, indices: np.ndarray, new_weight: Any) -> None:
        """Sets priorities in those buffers that have any."""
        weights = np.asarray(to_numpy(new_weight), np.float64).reshape(-1)
        if len(weights) != indices.shape[-1]:
            raise ValueError(f"{indices.shape[-1]} rows cannot get {len(weights)} weights")
        if not np.isfinite(weights).all():
            raise ValueError("a new weight is NaN or infinite: no priority was changed")
        for name, (positions, rows) in self.split(indices).items():
            if isinstance(self.buffers[name], PrioritizedReplayBuffer) and len(rows):
                self.buffers[name].update_weight(rows, weights[positions])

    def set_beta(self, beta: float) -> None:
        """See `PrioritizedReplayBuffer.set_beta`; for those buffers that have priorities."""
        for buffer in self.buffers.values():
            if isinstance(buffer, PrioritizedReplayBuffer):
                buffer.set_beta(beta)

    def statistics(self) -> dict[str, dict[str, float]]:
        """Of each buffer: rows in, out, dropped and held; refusals; use and age last sampled."""
        return {
            name: ledger.statistics(len(self.buffers[name]))
            for name, ledger in self._ledgers.items()
        }

    # --- shares

    def _checked_shares(self, ratio: Mapping[str, float]) -> np.ndarray:
        self._check_names(ratio, "ratio")
        shares = np.array([float(ratio.get(name, 0.0)) for name in self.names])
        if not (np.isfinite(shares).all() and (shares >= 0).all() and shares.sum() > 0):
            raise ValueError(f"ratio has to be of numbers that are 0 or more, not {dict(ratio)}")
        return np.asarray(shares / shares.sum())

    def _counts(self, batch_size: int) -> dict[str, int]:
        """Rows from each buffer; what does not divide falls to one or another by chance."""
        # Shares side by side on a line, cut at whole numbers plus one random number: however many
        # shares there are, each has its exact size on average, and is off by less than a row.
        ends = np.round(np.cumsum(self._shares) * batch_size, 9)
        whole = np.floor(ends)
        cuts = whole + (ends - whole + self._generator.random() >= 1.0)
        counts = np.diff(cuts, prepend=0.0).astype(int)
        return dict(zip(self.names, counts.tolist(), strict=True))

    def _member(self, name: str | None) -> tuple[str, Any, Ledger]:
        name = self.names[0] if name is None else name
        return name, self[name], self._ledgers[name]

    def _check_names(self, names: Any, what: str) -> None:
        for name in names:
            if name not in self.buffers:
                raise KeyError(
                    f"{what} names no buffer {name!r}; there are: {', '.join(self.names)}"
                )

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """Everything there is to restore, as `ReplayBuffer.state_dict` gives it for each buffer."""
        arrays: dict[tuple[str, ...], Any] = {}
        meta: dict[str, Any] = {"generator": self._generator.bit_generator.state, "buffers": {}}
        for name, buffer in self.buffers.items():
            ledger = self._ledgers[name]
            state = buffer.state_dict()
            arrays |= {(name, *path): array for path, array in state["arrays"].items()}
            arrays[name, "ledger", "use"] = ledger.use.copy()
            arrays[name, "ledger", "version"] = ledger.version.copy()
            meta["buffers"][name] = {
                "buffer": state["meta"],
                "counts": dict(ledger.counts),
                "last": dict(ledger.last),
            }
        return {"meta": meta, "arrays": arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave, into buffers of the same names and options.

        What was added and sampled before counts for no rate: clocks differ.
        """
        self._check_names(state["meta"]["buffers"], "the saved state")
        for name in self.names:
            if name not in state["meta"]["buffers"]:
                raise KeyError(f"the saved state has no buffer {name!r}")
        for name, meta in state["meta"]["buffers"].items():
            arrays = {k[1:]: v for k, v in state["arrays"].items() if k[0] == name}
            use, versions = arrays.pop(("ledger", "use")), arrays.pop(("ledger", "version"))
            self.buffers[name].load_state_dict({"meta": meta["buffer"], "arrays": arrays})
            ledger = self._ledgers[name]
            ledger.use, ledger.version = use.copy(), versions.copy()
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
