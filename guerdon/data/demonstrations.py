"""Demonstrations: whole episodes of somebody who knows how, and the files they come from."""

import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from guerdon.data.batch import Batch
from guerdon.data.files import atomic_file, read_arrays, write_arrays
from guerdon.data.leaves import describe, to_numpy
from guerdon.data.spaces import check_rows, number_to_json, space_from_json, space_to_json
from guerdon.data.tree import flatten, unflatten

FORMAT = "guerdon demonstrations"
VERSION = 1
KEYS = ("obs", "act", "rew", "terminated", "truncated", "obs_next")

_SHARD = "shard_{:06d}.npz"


@dataclass(frozen=True)
class Demonstrations:
    """Episodes in time order, checked when they are put together.

    Args:
        episodes: A `Batch` each of one row or more, with the keys obs, act, rew, terminated,
            truncated and obs_next, and any others that all episodes have. Only the last row may
            end the episode; where it does not, the recording stopped.
        env_id: The Gymnasium id of the environment, where it is known.
        observation_space: What an observation is one of, where it is known.
        action_space: What an action is one of, where it is known.
        seeds: The seed that each episode's environment was reset with; None where there is none.
    """

    episodes: list[Batch]
    env_id: str | None = None
    observation_space: Space[Any] | None = None
    action_space: Space[Any] | None = None
    seeds: list[int | None] = field(default_factory=list)

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

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def returns(self) -> np.ndarray:
        """The sum of the rewards of each episode."""
        return np.array([to_numpy(episode.rew).sum(dtype=np.float64) for episode in self.episodes])

    @property
    def lengths(self) -> np.ndarray:
        """How many transitions each episode has."""
        return np.array([len(episode) for episode in self.episodes])

    def transitions(self) -> Batch:
        """All rows of all episodes, one after the other."""
        return Batch.cat(self.episodes)


def _check_episode(episode: Batch, name: str) -> None:
    missing = [key for key in KEYS if key not in episode]
    if missing:
        raise ValueError(f"{name} has no {missing[0]!r}; it needs {', '.join(KEYS)}")
    if not isinstance(episode.rew, np.ndarray | torch.Tensor):
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
            raise ValueError(f"{key} of {name} must be {wanted}, one a row: {describe(column)}")
    if np.isnan(to_numpy(episode.rew)).any():
        raise ValueError(f"rew of {name} is NaN somewhere: repair that episode, or leave it out")
    ends = to_numpy(episode.terminated) | to_numpy(episode.truncated)
    if ends[:-1].any():
        row = int(ends.argmax())
        raise ValueError(f"{name} ends in row {row} of {rows}: cut it there into two episodes")


def shares_observations(episode: Batch) -> bool:
    """Whether each next observation is, to the bit, the observation of the row after it."""
    earlier = dict(flatten({"obs": episode.obs_next[:-1]}))
    later = dict(flatten({"obs": episode.obs[1:]}))
    return earlier.keys() == later.keys() and all(
        _same_bits(leaf, later[path]) for path, leaf in earlier.items()
    )


def joined_observations(episode: Batch) -> Any:
    """The observations of an episode that shares them, with the last one: one row more."""
    return Batch.cat([{"obs": episode.obs}, {"obs": episode.obs_next[-1:]}]).obs


def _same_bits(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if not isinstance(left, np.ndarray | torch.Tensor):
        return bool(left == right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if isinstance(left, torch.Tensor):
        sides = [side.contiguous().reshape(-1).view(torch.uint8) for side in (left, right)]
        return left.device == right.device and torch.equal(*sides)
    if left.dtype == object:
        return bool(left.tolist() == right.tolist())
    left, right = (np.ascontiguousarray(side).reshape(-1).view(np.uint8) for side in (left, right))
    return np.array_equal(left, right)


def save_demonstrations(
    demonstrations: Demonstrations,
    folder: str | os.PathLike[str],
    shard_bytes: int = 64 * 2**20,
    overwrite: bool = False,
) -> None:
    """Writes demonstrations to a folder: numbered shards of episodes, and ``meta.json`` last.

    An episode's observations are stored once where each next observation is the observation of the
    row after it. A folder without ``meta.json`` was not written to its end.

    Args:
        demonstrations: What to write.
        folder: Where to; it is made if need be.
        shard_bytes: A shard is closed when it has that many bytes; episodes are not split.
        overwrite: Whether demonstrations that are in the folder may be removed.
    """
    folder = pathlib.Path(folder)
    if (folder / "meta.json").exists() or any(folder.glob("shard_*.npz")):
        if not overwrite:
            raise FileExistsError(
                f"{folder} holds demonstrations: pass overwrite=True to replace them"
            )
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as aside:
            save_demonstrations(demonstrations, aside, shard_bytes)
            _replace(folder, pathlib.Path(aside))
        return
    spaces = (demonstrations.observation_space, demonstrations.action_space)
    described = [None if space is None else space_to_json(space) for space in spaces]
    shared = [shares_observations(episode) for episode in demonstrations.episodes]
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Any]] = []
    for shard in _shards(demonstrations.episodes, shard_bytes):
        rows = _shard_rows([(demonstrations.episodes[i], shared[i]) for i in shard])
        name = _SHARD.format(len(shards))
        write_arrays(folder / name, dict(flatten(rows)), {"first_episode": shard[0]})
        shards.append({"file": name, "episodes": len(shard)})
    numbers = zip(
        *(demonstrations.seeds, demonstrations.returns, demonstrations.lengths, shared), strict=True
    )
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "env_id": demonstrations.env_id,
        "observation_space": described[0],
        "action_space": described[1],
        "episodes": [
            {
                "seed": None if seed is None else int(seed),
                "return": number_to_json(total),
                "length": int(length),
                "shared_observations": shares,
            }
            for seed, total, length, shares in numbers
        ],
        "shards": shards,
    }
    with atomic_file(folder / "meta.json") as file:
        file.write(json.dumps(meta, indent=1, allow_nan=False).encode())


def _replace(folder: pathlib.Path, source: pathlib.Path) -> None:
    """Puts new demonstrations in the place of old ones; meta.json goes first and comes last."""
    meta = folder / "meta.json"
    if meta.exists():
        _read_meta(folder)  # an error, if it is somebody else's
    meta.unlink(missing_ok=True)
    for old in folder.glob("shard_*.npz"):
        old.unlink()
    for new in (*source.glob("shard_*.npz"), source / "meta.json"):
        new.replace(folder / new.name)


def _shards(episodes: list[Batch], shard_bytes: int) -> Iterator[list[int]]:
    """The numbers of the episodes of each shard."""
    shard: list[int] = []
    size = 0
    for number, episode in enumerate(episodes):
        shard.append(number)
        size += sum(getattr(leaf, "nbytes", 0) for _, leaf in flatten(episode))
        if size >= shard_bytes:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _shard_rows(episodes: list[tuple[Batch, bool]]) -> Batch:
    rest = [
        Batch({key: leaf for key, leaf in episode.items() if key not in ("obs", "obs_next")})
        for episode, _ in episodes
    ]
    observations = [
        Batch(obs=joined_observations(episode) if shares else episode.obs)
        for episode, shares in episodes
    ]
    in_full = [Batch(obs_next=episode.obs_next) for episode, shares in episodes if not shares]
    rows = Batch.cat(rest)
    rows.update(Batch.cat(observations))
    rows.update(Batch.cat(in_full))
    return rows


def _read_meta(folder: pathlib.Path) -> dict[str, Any]:
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
    except FileNotFoundError:
        hint = "was writing interrupted?" if any(folder.glob("shard_*.npz")) else "is it the right?"
        raise FileNotFoundError(f"{folder} has no meta.json: {hint}") from None
    except ValueError as error:
        raise ValueError(f"{folder / 'meta.json'} is damaged: {error}") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ValueError(f"{folder / 'meta.json'} is not a file written by guerdon")
    if meta.get("version", 0) > VERSION:
        raise ValueError(f"{folder} has format {meta['version']}, newer than this: upgrade guerdon")
    return meta


def load_folder(folder: pathlib.Path) -> Demonstrations:
    """Reads what `save_demonstrations` wrote."""
    meta = _read_meta(folder)
    episodes: list[Batch] = []
    try:
        for shard in meta["shards"]:
            if not (folder / shard["file"]).exists():
                raise FileNotFoundError(f"{folder} is not complete: {shard['file']} is missing")
            rows = unflatten(read_arrays(folder / shard["file"])[0])
            stop = len(episodes) + shard["episodes"]
            episodes += _cut_shard(rows, meta["episodes"][len(episodes) : stop], shard["file"])
        observation_space, action_space = (
            None if meta[key] is None else space_from_json(meta[key])
            for key in ("observation_space", "action_space")
        )
        seeds = [episode["seed"] for episode in meta["episodes"]]
        return Demonstrations(episodes, meta["env_id"], observation_space, action_space, seeds)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"the demonstrations in {folder} are damaged: {error}") from error


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
        raise ValueError(f"{name} does not hold the rows that meta.json tells of")
