"""Demonstrations: episodes of an expert, and their files."""

import math
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np
from gymnasium import Space

from guerdon.data.array_files import read_arrays
from guerdon.data.batch import Batch, flatten
from guerdon.data.leaves import Array, describe, to_numpy
from guerdon.data.serializer import check_only, check_replaceable, read_tree, write_tree
from guerdon.data.spaces import check_rows, space_from_json, space_to_json
from guerdon.limits import read_json, reading

KEYS = ("obs", "act", "rew", "terminated", "truncated", "obs_next")

_KIND = "demonstrations"


@dataclass(frozen=True, repr=False)
class Demonstrations:
    """Episodes in time order, checked on construction.

    Args:
        episodes: One `Batch` per episode, of one row or more, with the keys obs, act, rew,
            terminated, truncated and obs_next, and any others that all episodes have. Only the last
            row may end the episode; if it does not, the recording stopped there.
        env_id: Gymnasium id of the environment, if known.
        observation_space: Observation space, if known.
        action_space: Action space, if known.
        seeds: Seed of each episode's reset, or None.
        termination_rate: Fraction of transitions that terminate an episode; of the whole episodes
            if the rows are a sample of them. Computed from the rows by default.
    """

    episodes: list[Batch]
    env_id: str | None = None
    observation_space: Space[Any] | None = None
    action_space: Space[Any] | None = None
    seeds: list[int | None] = field(default_factory=list)
    termination_rate: float = math.nan

    def __post_init__(self) -> None:
        if not self.episodes:
            raise ValueError("demonstrations need at least one episode")
        object.__setattr__(self, "seeds", list(self.seeds) or [None] * len(self.episodes))
        if len(self.seeds) != len(self.episodes):
            raise ValueError(f"there are {len(self.seeds)} seeds for {len(self)} episodes")
        paths = {path for path, _ in flatten(self.episodes[0])}
        for number, episode in enumerate(self.episodes):
            name = f"episode {number}"
            _check_episode(episode, name)
            odd = paths ^ {path for path, _ in flatten(episode)}
            if odd:
                key = ".".join(min(odd))
                raise ValueError(f"{name} and episode 0 do not have the same keys: see {key!r}")
            if self.observation_space is not None:
                check_rows(self.observation_space, episode.obs, f"obs of {name}")
                check_rows(self.observation_space, episode.obs_next, f"obs_next of {name}")
            if self.action_space is not None:
                check_rows(self.action_space, episode.act, f"act of {name}", "same_kind")
        if math.isnan(self.termination_rate):
            object.__setattr__(self, "termination_rate", _termination_rate(self.episodes))

    def __len__(self) -> int:
        return len(self.episodes)

    def __repr__(self) -> str:
        steps = f"{self.lengths.sum():,} steps"
        return f"Demonstrations({len(self)} episodes, {steps}, env_id={self.env_id!r})"

    @property
    def returns(self) -> np.ndarray:
        """Sum of rewards of each episode."""
        return np.array([to_numpy(episode.rew).sum(dtype=np.float64) for episode in self.episodes])

    @property
    def lengths(self) -> np.ndarray:
        """Number of transitions of each episode."""
        return np.array([len(episode) for episode in self.episodes])

    def transitions(self) -> Batch:
        """Return the rows of all episodes, concatenated."""
        try:
            return Batch.cat(self.episodes)
        except TypeError as error:
            raise ValueError(f"the episodes of the demonstrations differ: {error}") from error


def _termination_rate(episodes: list[Batch]) -> float:
    ends = sum(int(to_numpy(episode.terminated).sum()) for episode in episodes)
    return ends / sum(len(episode) for episode in episodes)


def selected(
    demonstrations: Demonstrations, episodes: int | None = None, subsample: int = 1
) -> Demonstrations:
    """Return a part of demonstrations: the first episodes, and every n-th transition of each.

    A subsampled transition is an episode of its own, since the next one is not its successor. Few
    of them, if any, are ends of episodes: `Demonstrations.termination_rate` is that of the whole
    episodes. The choice is the same in every run, so that results on the same part can be compared.

    Args:
        demonstrations: Demonstrations of whole episodes.
        episodes: Number of episodes to keep; None for all.
        subsample: Keep every n-th transition of an episode, from a random start.
    """
    if episodes is None and subsample == 1:
        return demonstrations
    if episodes is not None and episodes > len(demonstrations):
        raise ValueError(
            f"'episodes' is {episodes}, but there are only {len(demonstrations)} demonstrated "
            "episodes: ask for fewer, or leave it out"
        )
    whole, seeds = demonstrations.episodes[:episodes], demonstrations.seeds[:episodes]
    rate = _termination_rate(whole)
    if subsample == 1:
        return replace(demonstrations, episodes=whole, seeds=seeds, termination_rate=rate)
    generator = np.random.default_rng(0)
    rows = [
        episode[row : row + 1]
        for episode in whole
        for row in range(
            int(generator.integers(min(subsample, len(episode)))), len(episode), subsample
        )
    ]
    return replace(demonstrations, episodes=rows, seeds=[], termination_rate=rate)


def as_like(rows: Any, like: Any) -> Any:
    """Return nested arrays in the dtypes of others, for a buffer that has those."""
    if isinstance(like, Batch):
        return {key: as_like(rows[key], part) for key, part in like.items()}
    return to_numpy(rows).astype(to_numpy(like).dtype)


def split_rows(
    lengths: np.ndarray, share: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows to fit and rows to hold out: whole episodes if there are several.

    Args:
        lengths: Lengths of the episodes.
        share: Fraction to hold out; at least one episode or row. A single row is both.
        generator: Random generator.
    """
    n_rows = int(lengths.sum())
    if n_rows == 1:
        return np.arange(1), np.arange(1)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    unit = episode if len(lengths) > 1 else np.arange(n_rows)
    order = generator.permutation(unit[-1] + 1)
    out = np.isin(unit, order[: max(1, int(share * len(order)))])
    return np.flatnonzero(~out), np.flatnonzero(out)


def _check_episode(episode: Batch, name: str) -> None:
    missing = [key for key in KEYS if key not in episode]
    if missing:
        raise ValueError(f"{name} has no {missing[0]!r}; it needs {', '.join(KEYS)}")
    if not isinstance(episode.rew, Array):
        raise ValueError(f"rew of {name} must be an array, not {describe(episode.rew)}")
    try:
        rows = len(episode)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
    if not rows:
        raise ValueError(f"{name} is empty: leave it out")
    for key in ("rew", "terminated", "truncated"):
        column = to_numpy(episode[key])
        wanted, kinds = ("numbers", "biuf") if key == "rew" else ("booleans", "b")
        if column.ndim != 1 or column.dtype.kind not in kinds:
            raise ValueError(f"{key} of {name} must be {wanted}, one per row: {describe(column)}")
    if np.isnan(to_numpy(episode.rew)).any():
        raise ValueError(f"rew of {name} has a NaN: repair this episode, or leave it out")
    ends = to_numpy(episode.terminated) | to_numpy(episode.truncated)
    if ends[:-1].any():
        row = int(ends.argmax())
        raise ValueError(f"{name} ends in row {row} of {rows}: cut it there into two episodes")


def shares_observations(episode: Batch) -> bool:
    """Return whether each next observation equals the observation of the next row, bit by bit."""
    return _bits(episode.obs_next[:-1]) == _bits(episode.obs[1:])


def _bits(observations: Any) -> dict[tuple[str, ...], Any]:
    """Return a value that is equal only for equal kinds, dtypes, shapes and bits."""
    leaves = flatten({"obs": observations})
    return {
        path: (describe(leaf), leaf.tolist() if leaf.dtype == object else to_numpy(leaf).tobytes())
        if isinstance(leaf, Array)
        else leaf
        for path, leaf in leaves
    }


def joined_observations(episode: Batch) -> Any:
    """Return the observations of an episode that shares them, and the final one: T + 1 rows."""
    return Batch.cat([{"obs": episode.obs}, {"obs": episode.obs_next[-1:]}]).obs


def save_demonstrations(
    demonstrations: Demonstrations,
    folder: str | os.PathLike[str],
    shard_bytes: int = 64 * 2**20,
    overwrite: bool = False,
) -> None:
    """Write demonstrations to a folder, atomically.

    Observations are stored once if each next observation is the observation of the next row.

    Args:
        demonstrations: Demonstrations to write.
        folder: Folder; created with its parents if missing.
        shard_bytes: Size at which a file of episodes is closed.
        overwrite: Whether to replace demonstrations in the folder.
    """
    folder = pathlib.Path(folder)
    check_folder(folder, overwrite)
    spaces = (demonstrations.observation_space, demonstrations.action_space)
    described = [None if space is None else space_to_json(space) for space in spaces]
    meta = {
        "env_id": demonstrations.env_id,
        "observation_space": described[0],
        "action_space": described[1],
        "seeds": [None if seed is None else int(seed) for seed in demonstrations.seeds],
        "returns": demonstrations.returns.tolist(),
        "lengths": demonstrations.lengths.tolist(),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    shards = _shards(demonstrations.episodes, shard_bytes)
    write_tree(folder, chain([("meta", meta)], shards), _KIND)


def check_folder(folder: pathlib.Path, overwrite: bool) -> None:
    """Raise an error if `save_demonstrations` may not write to a folder."""
    old = _is_old(folder)
    if not overwrite and (old or (folder / "manifest.json").exists()):
        raise FileExistsError(
            f"{folder} has demonstrations: add --overwrite or pass overwrite=True to replace them"
        )
    if old:
        _old_meta(folder)  # raises an error if guerdon did not write it
        check_only(folder, {"meta.json", *(path.name for path in folder.glob("shard_*.npz"))})
    else:
        check_replaceable(folder, _KIND)


def _shards(episodes: list[Batch], shard_bytes: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the parts of the file; episodes are encoded when they are written."""
    shard: list[dict[str, Any]] = []
    size = number = 0
    for i, episode in enumerate(episodes):
        stored = episode.to_dict()
        if shares_observations(episode):
            del stored["obs_next"]
            stored["obs"] = Batch(obs=joined_observations(episode)).to_dict()["obs"]
        shard.append(stored)
        # Count the description of the arrays, too.
        size += sum(getattr(leaf, "nbytes", 0) + 200 for _, leaf in flatten(episode))
        if size >= shard_bytes or i + 1 == len(episodes):
            yield f"shard_{number:06d}", shard
            shard, size, number = [], 0, number + 1


def load_folder(folder: pathlib.Path) -> Demonstrations:
    """Read a folder that `save_demonstrations` wrote."""
    old = _is_old(folder)
    if not old and folder.exists() and not (folder / "manifest.json").exists():
        raise FileNotFoundError(f"{folder} has no demonstrations: manifest.json is missing")
    tree = {} if old else read_tree(folder, _KIND)
    with reading(folder):
        return _load_old(folder) if old else _from_tree(tree)


def _from_tree(tree: dict[str, Any]) -> Demonstrations:
    meta = tree.pop("meta")
    episodes = []
    for rows in chain(*tree.values()):
        episode = Batch(rows)
        if "obs_next" not in episode:
            episode.obs, episode.obs_next = episode.obs[:-1], episode.obs[1:]
        episodes.append(episode)
    return _with_meta(episodes, meta, meta["seeds"])


def _with_meta(episodes: list[Batch], meta: dict[str, Any], seeds: list[Any]) -> Demonstrations:
    observation_space, action_space = (
        None if meta[key] is None else space_from_json(meta[key])
        for key in ("observation_space", "action_space")
    )
    return Demonstrations(episodes, meta["env_id"], observation_space, action_space, seeds)


# --- older format (meta.json and shards of .npz), read only


def _is_old(folder: pathlib.Path) -> bool:
    return (folder / "meta.json").exists() or any(folder.glob("shard_*.npz"))


def _old_meta(folder: pathlib.Path) -> dict[str, Any]:
    meta: dict[str, Any] = read_json(folder / "meta.json")
    if meta.get("format") != "guerdon demonstrations" or meta.get("version") != 1:
        raise ValueError("meta.json is not a file written by guerdon")
    return meta


def _load_old(folder: pathlib.Path) -> Demonstrations:
    meta = _old_meta(folder)
    described = iter(meta["episodes"])
    episodes: list[Batch] = []
    for shard in meta["shards"]:
        rows = read_arrays(folder / shard["file"])
        episodes += _cut_shard(rows, list(islice(described, shard["episodes"])), shard["file"])
    return _with_meta(episodes, meta, [episode["seed"] for episode in meta["episodes"]])


def _cut_shard(rows: Batch, described: list[dict[str, Any]], name: str) -> Iterator[Batch]:
    obs, obs_next = rows.pop("obs"), rows.pop("obs_next", None)
    row = obs_row = next_row = 0
    for episode in described:
        length, shares = episode["length"], episode["shared_observations"]
        cut = rows[row : row + length]
        cut.obs = obs[obs_row : obs_row + length]
        if shares:
            cut.obs_next = obs[obs_row + 1 : obs_row + 1 + length]
        else:
            cut.obs_next = obs_next[next_row : next_row + length]
            next_row += length
        row += length
        obs_row += length + shares
        yield cut
    if len(rows) != row or len(Batch(obs=obs)) != obs_row:
        raise ValueError(f"{name} does not have the rows that meta.json lists")
