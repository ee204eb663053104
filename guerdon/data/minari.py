"""Demonstrations from and to Minari datasets."""

import inspect
import pathlib
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec

from guerdon.data.batch import Batch, flatten
from guerdon.data.demonstrations import Demonstrations, joined_observations, shares_observations
from guerdon.data.leaves import to_numpy
from guerdon.extras import require
from guerdon.limits import read_json, reading


def from_minari(dataset: Any) -> Demonstrations:
    """Read the episodes of a local Minari dataset.

    The parts of a Tuple space become a `Batch` with the keys "0", "1" and so on. Numbers are
    converted to the dtype of the space. Infos of steps are kept under ``info``; the info of the
    reset has no transition and is left out.

    Args:
        dataset: A ``minari.MinariDataset``, its id, or its folder as a `pathlib.Path`.
    """
    minari = require("minari", "minari")
    if isinstance(dataset, str):
        folder = pathlib.Path(minari.storage.local.get_dataset_path(dataset))
        if not (folder / "data").exists():
            raise FileNotFoundError(
                f"the Minari dataset {dataset!r} is not on this machine: minari download {dataset}"
            )
        dataset = folder
    if isinstance(dataset, pathlib.Path):
        dataset = dataset / "data" if (dataset / "data").exists() else dataset
        _check_spaces(dataset / "metadata.json")
        with reading(dataset):
            dataset = minari.MinariDataset(dataset)
    elif not isinstance(dataset, minari.MinariDataset):
        raise TypeError(f"demonstrations cannot be read from a {type(dataset).__name__}")
    episodes = [_to_batch(episode, dataset) for episode in dataset.iterate_episodes()]
    described = dataset.storage.get_episode_metadata(dataset.episode_indices)
    return Demonstrations(
        episodes,
        env_id=None if dataset.env_spec is None else dataset.env_spec.id,
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
        seeds=[episode.get("seed") for episode in described],
    )


def _check_spaces(file: pathlib.Path) -> None:
    """Raise an error if a dataset has no spaces: Minari would make the environment that it names.

    That may be any function of any module.
    """
    meta = read_json(file)
    spaces = [meta.get(f"{name}_space") for name in ("observation", "action")]
    if not all(isinstance(space, str) for space in spaces):
        raise ValueError(
            f"{file} has no observation and action spaces, which guerdon does not take from its "
            "environment: write the dataset with them"
        )


def is_minari_folder(folder: pathlib.Path) -> bool:
    """Return whether a folder holds a Minari dataset."""
    return (folder / "data/metadata.json").exists() or (folder / "metadata.json").exists()


def _to_batch(episode: Any, dataset: Any) -> Batch:
    observations = Batch(obs=_from_space(dataset.observation_space, episode.observations))
    batch = Batch(
        obs=observations[:-1].obs,
        act=_from_space(dataset.action_space, episode.actions),
        rew=np.asarray(episode.rewards),
        terminated=np.asarray(episode.terminations, dtype=bool),
        truncated=np.asarray(episode.truncations, dtype=bool),
        obs_next=observations[1:].obs,
    )
    if episode.infos:
        infos = Batch(episode.infos).apply(_decode)
        batch.info = infos[len(infos) - len(batch) :]
    return batch


def _from_space(space: Space[Any], data: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _from_space(part, data[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(i): _from_space(part, data[i]) for i, part in enumerate(space.spaces)}
    array = np.asarray(data, dtype=object if isinstance(space, spaces.Text) else None)
    if isinstance(space, spaces.Box) and np.can_cast(array.dtype, space.dtype, "same_kind"):
        return array.astype(space.dtype, copy=False)
    return array


def _decode(leaf: np.ndarray) -> np.ndarray:
    """Convert HDF5's bytes to text."""
    if leaf.dtype != object:
        return leaf
    text = [value.decode() if isinstance(value, bytes) else value for value in leaf.flat]
    return np.fromiter(text, object, leaf.size).reshape(leaf.shape)


def to_minari(demonstrations: Demonstrations, dataset_id: str, **description: Any) -> Any:
    """Write demonstrations as a local Minari dataset, and return it.

    Minari stores observations once, so each next observation must be the observation of the next
    row. Keys other than ``info`` are left out; the info of the reset, which demonstrations do not
    have, repeats the first one. Images are not compressed unless ``jpeg_encoding=True`` is given.

    Args:
        demonstrations: Demonstrations whose spaces are known.
        dataset_id: A new id, such as ``"cartpole/expert-v0"``.
        **description: Other arguments of ``minari.create_dataset_from_buffers``: author,
            author_email, algorithm_name, code_permalink, description, and so on.
    """
    minari = require("minari", "minari")
    observation_space, action_space = demonstrations.observation_space, demonstrations.action_space
    if observation_space is None or action_space is None:
        raise ValueError("Minari requires the spaces: set observation_space and action_space")
    buffers = []
    for number, episode in enumerate(demonstrations.episodes):
        if not shares_observations(episode):
            raise ValueError(
                f"episode {number} has next observations that differ from the observations of "
                "the next rows, which Minari cannot store"
            )
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                seed=demonstrations.seeds[number],
                observations=_to_space(observation_space, joined_observations(episode)),
                actions=_to_space(action_space, episode.act),
                rewards=to_numpy(episode.rew),
                terminations=to_numpy(episode.terminated),
                truncations=to_numpy(episode.truncated),
                infos=_infos(episode, number),
            )
        )
    create = minari.create_dataset_from_buffers
    if "jpeg_encoding" in inspect.signature(create).parameters:  # since Minari 0.5.4
        description.setdefault("jpeg_encoding", False)
    with warnings.catch_warnings():  # Minari warns about missing parts of the description
        warnings.filterwarnings("ignore", ".*(is set to None|env_spec is None)", UserWarning)
        return create(
            dataset_id,
            buffers,
            env=_named_env(demonstrations),
            observation_space=observation_space,
            action_space=action_space,
            **description,
        )


def _to_space(space: Space[Any], rows: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _to_space(part, rows[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_to_space(part, rows[str(i)]) for i, part in enumerate(space.spaces))
    return to_numpy(rows)


def _infos(episode: Batch, number: int) -> dict[str, Any] | None:
    info = episode.get("info")
    if not isinstance(info, Batch) or info.is_empty(recurse=True):
        return None
    infos = info.to_numpy()
    for path, leaf in flatten(infos):
        text = isinstance(leaf, np.ndarray) and all(isinstance(value, str) for value in leaf.flat)
        if not isinstance(leaf, np.ndarray) or (leaf.dtype == object and not text):
            raise ValueError(
                f"info.{'.'.join(path)} of episode {number} is neither numeric nor text, and "
                "Minari stores only these: leave it out"
            )
    return Batch.cat([infos[:1], infos]).to_dict()


def _named_env(demonstrations: Demonstrations) -> Any:
    """Return a stand-in with the environment's id; from the id alone, Minari would make the env."""
    if demonstrations.env_id is None:
        return None
    env: gymnasium.Env[Any, Any] = gymnasium.Env()
    env.spec = gymnasium.registry.get(demonstrations.env_id) or EnvSpec(demonstrations.env_id)
    return env
