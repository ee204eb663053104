"""nerveX's `BufferManager` and collate functions."""

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from guerdon.compat.nervex.log_files import LogFiles
from guerdon.compat.nervex.torch_utils import stack
from guerdon.config.schema import Section
from guerdon.config.validation import validated
from guerdon.data.mixed import divided
from guerdon.data.prioritized import PrioritizedReplayBuffer

Item = dict[str, Any]

# --- buffers

_SIZES = ("meta_maxlen", "replay_buffer_size", "size")
_NAMES = dict.fromkeys(_SIZES, "maxlen") | {"max_reuse": "max_use"}
_MEASURES: dict[str, Callable[[Any], Any]] = {"avg": np.mean, "max": np.max, "min": np.min}


class _Options(Section):
    """Options of one buffer."""

    maxlen: int = Field(default=4096, ge=1)
    """Maximum number of items; the oldest are replaced."""
    max_use: float = Field(default=float("inf"), ge=1)
    """Number of samples after which an item is removed."""
    max_staleness: float = Field(default=float("inf"), ge=0)
    """Learner iterations after its ``collect_iter`` at which an item is removed."""
    min_sample_ratio: float = 1.0
    """Minimum number of items for sampling, as a multiple of those that are sampled."""
    alpha: float = 0.0
    """Exponent of priorities; 0 samples uniformly."""
    beta: float = 0.0
    """Exponent of importance weights."""
    anneal_step: int = 0
    """Samples over which beta increases to 1; 0 keeps it."""
    enable_track_used_data: bool = False
    """Whether `used_data` returns items that were replaced or removed."""
    deepcopy: bool = False
    """Whether items are copied, with all that is in them, when they are pushed and sampled."""
    monitor: dict[str, Any] = Field(default={})
    """``log_path`` and ``log_freq`` (2000) of files with statistics, which are over the last
    ``tick_expire`` (100) pushes and samples."""


class _Buffer:
    """Items of one buffer, in the rows of a `PrioritizedReplayBuffer`; see `_Options`."""

    def __init__(
        self, name: str, settings: Mapping[str, Any], generator: np.random.Generator
    ) -> None:
        given = {_NAMES.get(key, key): each for key, each in settings.items() if each is not None}
        if "load_path" in given:
            raise ValueError("'load_path' names a pickle, which is not read: push the items")
        self.name, self.options = name, validated(_Options, given, "replay_buffer")
        options, monitor = self.options, self.options.monitor
        self.rows = PrioritizedReplayBuffer(
            options.maxlen, options.alpha, options.beta, ignore_obs_next=True, seed=generator
        )
        self.items: dict[int, Item] = {}  # by row
        self.ids: dict[int, str] = {}
        self.uses = np.zeros(options.maxlen, np.int64)
        self.collected = np.full(options.maxlen, np.inf)  # learner iterations; inf: not known
        self.used: deque[Item] = deque()
        self.counts = dict.fromkeys(("pushed", "sampled", "removed"), 0)
        self.newest: dict[str, float] = {}
        self._times = {"in": 0, "out": 0}  # pushes and samples
        self._recent = {way: deque[Any](maxlen=monitor.get("tick_expire", 100)) for way in "io"}
        self.files = LogFiles(monitor["log_path"], name) if "log_path" in monitor else None

    def push(self, items: Sequence[Any]) -> None:
        """Add items, in place of the oldest where necessary."""
        for wrong in [item for item in items if not isinstance(item, Mapping)]:
            raise TypeError(f"an item is a dictionary, not a {type(wrong).__name__}")
        began = time.monotonic()
        for item in items:
            row = int(self.rows.add(obs=0.0, act=0, rew=0.0, done=True)[0])
            self._drop(row)
            self.items[row] = copy.deepcopy(item) if self.options.deepcopy else item
            self.ids[row] = f"{self.name}_{self.counts['pushed']}"
            self.uses[row] = 0
            self.collected[row] = np.min(item.get("collect_iter", np.inf))
            self.counts["pushed"] += 1
            if item.get("priority") is not None:
                self.rows.update_weight([row], [item["priority"]])
        self._note("in", in_count=[len(items)], in_time=[time.monotonic() - began])

    def ready(self, number: int, iteration: int) -> bool:
        """Remove items that are too old, and return whether so many can be sampled."""
        rows = self.rows.stored_rows()
        self.remove(rows[iteration - self.collected[rows] >= self.options.max_staleness].tolist())
        return not number or len(self.items) >= max(number * self.options.min_sample_ratio, 1)

    def sample(self, number: int, iteration: int) -> list[Item]:
        """Draw items, each with its ``IS``, ``priority``, ``reuse``, ``staleness`` and place."""
        if not number:
            return []
        began = time.monotonic()
        options, rows = self.options, self.rows.sample_indices(number)
        priorities = self.rows.priorities
        weights = (priorities[priorities > 0].min() / priorities[rows]) ** self.rows.beta
        scale = 1 / options.alpha if options.alpha else 0.0
        copied, found = copy.deepcopy if options.deepcopy else copy.copy, []
        for row, weight in zip(rows.tolist(), weights.tolist(), strict=True):
            reuse, age = int(self.uses[row]), iteration - self.collected[row]
            self.uses[row] += 1
            item = copied(self.items[row])
            item.update(IS=weight, priority=float(priorities[row] ** scale), reuse=reuse)
            item.update(use=reuse + 1, staleness=int(max(age, -1)))  # -1: not known
            item.update(replay_unique_id=self.ids[row], replay_buffer_idx=row)
            found.append(item)
        self.counts["sampled"] += number
        self.remove(row for row in set(rows.tolist()) if self.uses[row] >= options.max_use)
        if options.anneal_step:
            self.rows.beta = min(self.rows.beta + (1 - options.beta) / options.anneal_step, 1.0)
        seen = {key: [item[key] for item in found] for key in ("reuse", "priority", "staleness")}
        self._note("out", out_count=[number], out_time=[time.monotonic() - began], **seen)
        return found

    def update(self, ids: Iterable[tuple[str, int, float]]) -> None:
        """Set the priorities of items that are still there."""
        for unique_id, row, priority in ids:
            if self.ids.get(row) == unique_id:
                self.rows.update_weight([row], [float(priority)])

    def remove(self, rows: Iterable[int]) -> None:
        """Remove items."""
        for row in list(rows):
            self.rows.discard([row])
            self._drop(row)
            self.counts["removed"] += 1

    def _drop(self, row: int) -> None:
        item = self.items.pop(row, None)
        self.ids.pop(row, None)
        if item is not None and self.options.enable_track_used_data:
            self.used.append(item)

    def _note(self, way: str, **values: list[float]) -> None:
        """Update the statistics of recent pushes (``in``) or samples (``out``), and their files."""
        recent = self._recent[way[0]]
        recent.append(values)
        rows = {key: np.concatenate([each[key] for each in recent]) for key in values}
        found = {
            f"{key}_{name}": float(measure(row))
            for key, row in rows.items()
            for name, measure in _MEASURES.items()
        }
        self.newest |= found
        number = self._times[way]
        self._times[way] += 1
        if self.files is not None and number % self.options.monitor.get("log_freq", 2000) == 0:
            metrics = {f"buffer_{self.name}/{key}": value for key, value in found.items()}
            self.files.write(f"{way} {number}", number, metrics)


class BufferManager:
    """Several buffers of items (dictionaries), sampled by ratio; may be used by several threads.

    >>> manager = BufferManager({"meta_maxlen": 10})
    >>> manager.push_data([{"obs": number} for number in range(10)])
    >>> len(manager.sample(4))
    4

    `cfg` has ``buffer_name``, a list; the options of each buffer under its name; and
    ``sample_ratio``, each buffer's share of a batch (equal by default). Or it has the options of
    one buffer, ``agent``; see `_Options`, whose ``maxlen`` may be ``meta_maxlen``, and ``max_use``
    ``max_reuse``. `seed` is for sampling.
    """

    def __init__(
        self, cfg: Mapping[str, Any], seed: int | np.random.Generator | None = None
    ) -> None:
        sections = dict(cfg)
        self.buffer_name = list(sections.pop("buffer_name", ["agent"]))
        ratio = sections.pop("sample_ratio", None)
        named = any(name in sections for name in self.buffer_name) or len(self.buffer_name) != 1
        sections = sections if named else {self.buffer_name[0]: sections}
        for name in sections.keys() - set(self.buffer_name):
            raise ValueError(f"'buffer_name' is {self.buffer_name} and has no {name!r}: add it")
        self._generator = np.random.default_rng(seed)
        self.buffer = {
            name: _Buffer(name, sections.get(name, {}), self._generator)
            for name in self.buffer_name
        }
        self._ratio = self._shares(ratio or dict.fromkeys(self.buffer_name, 1.0))
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return sum(len(buffer.items) for buffer in self.buffer.values())

    def push_data(self, data: Any, buffer_name: str | None = None) -> None:
        """Add an item or a list of items to a buffer; the first one by default.

        An item may have a ``priority``, and ``collect_iter``, the learner iteration of its policy.
        """
        with self._lock:
            self._find(buffer_name).push(data if isinstance(data, list | tuple) else [data])

    push = push_data

    def sample(
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        sample_ratio: Mapping[str, float] | None = None,
    ) -> list[Item] | None:
        """Draw copies of items from all buffers, by ratio; None if a buffer has too few.

        They have ``IS`` (importance weight), ``priority``, ``reuse``, ``staleness`` at the learner
        iteration, ``replay_unique_id`` and ``replay_buffer_idx``. A new ratio is kept for later.
        """
        with self._lock:
            if sample_ratio is not None:
                self._ratio = self._shares(sample_ratio)
            counts = divided(batch_size, self._ratio, self._generator)
            parts = list(zip(self.buffer.values(), counts, strict=True))
            ready = [buffer.ready(count, cur_learner_iter) for buffer, count in parts]
            if not all(ready):
                return None
            found = [buffer.sample(count, cur_learner_iter) for buffer, count in parts]
        return [item for items in found for item in items]

    def update(self, info: Mapping[str, Sequence[Any]]) -> None:
        """Set priorities: ``replay_unique_id``, ``replay_buffer_idx`` and ``priority`` of items."""
        keys = ("replay_unique_id", "replay_buffer_idx", "priority")
        rows = list(zip(*(info[key] for key in keys), strict=True))
        with self._lock:
            for name, buffer in self.buffer.items():
                buffer.update(row for row in rows if row[0].rpartition("_")[0] == name)

    def clear(self, buffer_name: str | Sequence[str] | None = None) -> None:
        """Remove all items of some buffers, or of all."""
        names = [buffer_name] if isinstance(buffer_name, str) else buffer_name or self.buffer_name
        with self._lock:
            for name in names:
                buffer = self._find(name)
                buffer.remove(buffer.items)

    def count(self, buffer_name: str | None = None) -> int:
        """Return the number of items of a buffer; the first one by default."""
        return len(self._find(buffer_name).items)

    def used_data(self, buffer_name: str | None = None) -> Item | None:
        """Return the oldest item that was replaced or removed, once; None if there is none."""
        used = self._find(buffer_name).used
        return used.popleft() if used else None

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return the numbers of items, and statistics of recent pushes and samples, by buffer."""
        return {
            name: {**buffer.counts, "held": len(buffer.items), **buffer.newest}
            for name, buffer in self.buffer.items()
        }

    def run(self) -> None:
        """Do nothing: items can be pushed at once."""

    def close(self) -> None:
        """Close the files of statistics."""
        for buffer in self.buffer.values():
            if buffer.files is not None:
                buffer.files.close()

    def _find(self, name: str | None) -> _Buffer:
        name = self.buffer_name[0] if name is None else name
        if name not in self.buffer:
            known = ", ".join(self.buffer_name)
            raise KeyError(f"unknown buffer {name!r}; there are: {known}")
        return self.buffer[name]

    def _shares(self, ratio: Mapping[str, float]) -> np.ndarray:
        for name in ratio:
            self._find(name)
        shares = np.array([float(ratio.get(name, 0.0)) for name in self.buffer_name])
        if not ((shares >= 0).all() and 0 < shares.sum() < np.inf):
            raise ValueError(f"sample_ratio needs numbers of 0 or more, not {dict(ratio)}")
        return np.asarray(shares / shares.sum())


# --- collate functions


def default_collate(batch: Sequence[Any]) -> Any:
    """Collate items: tensors [B, ...] in dictionaries, lists and namedtuples; [B, 1] is [B]."""
    return _collated(batch, lambda rows: torch.cat(rows) if rows[0].shape == (1,) else None)


def diff_shape_collate(batch: Sequence[Any]) -> Any:
    """Collate items as `default_collate`, but keep a list of None or of tensors of any shapes."""

    def kept(rows: list[Tensor]) -> Any:
        return list(rows) if len({row.shape for row in rows}) > 1 else None

    return _collated(batch, kept, none=True)


def stacked_collate(batch: Sequence[Any]) -> Any:
    """Collate items to tensors [B, ...], and those of lists over time to [T, B, ...]."""
    return _stacked(_collated(batch, lambda _: None))


def timestep_collate(batch: Sequence[Item]) -> Item:
    """Collate items of lists over time: [T, B, ...]; ``prev_state`` becomes T tuples of states."""
    states = [item["prev_state"] for item in batch]
    rest = [{key: item[key] for key in item if key != "prev_state"} for item in batch]
    return {**_stacked(default_collate(rest)), "prev_state": list(zip(*states, strict=True))}


def default_decollate(batch: Any, ignore: Sequence[str] = ("prev_state",)) -> list[Any]:
    """Split a collated batch into items; keys in `ignore` are already lists of rows."""
    if isinstance(batch, Tensor):
        return [row.reshape(1) if batch.ndim == 1 else row for row in batch.unbind()]
    if isinstance(batch, Mapping):
        parts = [
            value if key in ignore else default_decollate(value) for key, value in batch.items()
        ]
        return [dict(zip(batch, row, strict=True)) for row in zip(*parts, strict=True)]
    if isinstance(batch, Sequence):
        return list(zip(*map(default_decollate, batch), strict=True))
    raise TypeError(f"a {type(batch).__name__} cannot be split into items")


def _collated(
    batch: Sequence[Any], special: Callable[[list[Tensor]], Any], none: bool = False
) -> Any:
    def again(rows: Iterable[Any]) -> Any:
        return _collated(list(rows), special, none)

    first = batch[0]
    if isinstance(first, str) or (none and any(each is None for each in batch)):
        return list(batch)
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {key: again(each[key] for each in batch) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(again, zip(*batch, strict=True)))
    if isinstance(first, Sequence):
        return [again(rows) for rows in zip(*batch, strict=True)]
    if isinstance(first, float):
        return torch.tensor(batch, dtype=torch.float32)
    if not isinstance(first, Tensor | np.ndarray | np.generic | int):
        raise TypeError(f"items of {type(first).__name__} cannot become a tensor")
    rows = [torch.as_tensor(each) for each in batch]
    found = special(rows)
    return torch.stack(rows) if found is None else found


def _stacked(tree: Any) -> Any:
    """Stack lists of tensors in dictionaries."""
    if isinstance(tree, Mapping):
        return {key: _stacked(value) for key, value in tree.items()}
    return stack(tree) if isinstance(tree, list) else tree
