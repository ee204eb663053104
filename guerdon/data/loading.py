"""Loads demonstrations in any supported format."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import Field

from guerdon.config.schema import Section
from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations, load_folder, selected
from guerdon.data.files import set_aside
from guerdon.data.leaves import describe
from guerdon.data.minari import from_minari, is_minari_folder
from guerdon.data.unpickle import safe_unpickle
from guerdon.limits import reading

ZOO = pathlib.Path(__file__).parents[1] / "zoo" / "demonstrations"
TO_GET_SOME = (
    "name a folder that `guerdon collect RUN --episodes 20 --out FOLDER` wrote with the policy of "
    "a run, or included demonstrations such as zoo:cartpole"
)
"""How to get demonstrations, as the end of an error message."""
_OTHER_NAMES = {"action": "act", "reward": "rew", "next_obs": "obs_next"}


class DemonstrationsConfig(Section):
    """Options of everything that learns from demonstrations."""

    expert_data_path: str | None = None
    """Demonstrations: a folder that `guerdon collect` wrote, ``minari:<dataset id>``, a ``.pkl``
    file, ``zoo:<name>`` for those included in guerdon, or ``expert:<preset>``, optionally with
    ``?episodes=10&return=475``, for those of a policy that is trained once and cached."""
    episodes: int | None = Field(default=None, ge=1)
    """Number of demonstrated episodes to use, the first ones; null for all."""
    subsample: int = Field(default=1, ge=1)
    """Use every n-th transition of a demonstrated episode, from a random start that is the same in
    every run; 1 for all, 20 in many papers."""

    def load(self, source: Any = None) -> Demonstrations:
        """Return the demonstrations of a source, by default of `expert_data_path`."""
        source = self.expert_data_path if source is None else source
        try:
            found = source if isinstance(source, Demonstrations) else load_demonstrations(source)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error} ('expert_data_path'): {TO_GET_SOME}") from error
        return selected(found, self.episodes, self.subsample)


def load_demonstrations(source: Any) -> Demonstrations:
    """Read demonstrations.

    Observations of a folder may share memory with next observations: copy before writing to them.
    For lists and pickled files see `episodes_of`.

    Args:
        source: A folder that `save_demonstrations` wrote; ``"zoo:<name>"`` for one that comes with
            guerdon; a list of transitions or of episodes, or a ``.pkl`` or ``.pickle`` file of one;
            a Minari dataset, as ``"minari:<dataset id>"``, as its folder, or as the object itself.
    """
    if isinstance(source, list):
        return Demonstrations(episodes_of(source, "the given data"))
    if not isinstance(source, str | os.PathLike):
        return from_minari(source)
    if str(source).startswith("minari:"):
        return from_minari(str(source).removeprefix("minari:"))
    if str(source).startswith("expert:"):
        raise ValueError(
            f"{source!r} is made by training: use it in a run's config, or read the folder that "
            "guerdon.training.experts.expert_folder gives"
        )
    path = pathlib.Path(source)
    if str(source).startswith("zoo:"):
        path = ZOO / str(source).removeprefix("zoo:")
        if not path.exists():
            held = ", ".join(sorted(each.name for each in ZOO.iterdir()))
            raise FileNotFoundError(
                f"no demonstrations {source!r} come with guerdon; it has {held}"
            )
    if not path.exists() and not set_aside(path).exists():
        raise FileNotFoundError(f"there are no demonstrations at {path}")
    if path.is_file():
        if path.suffix in (".pkl", ".pickle"):
            with reading(path):
                return Demonstrations(episodes_of(safe_unpickle(path), str(path)))
        raise ValueError(f"{path} is neither a folder of demonstrations nor a .pkl file")
    if is_minari_folder(path):
        return from_minari(path)
    return load_folder(path)


def episodes_of(data: Any, name: str) -> list[Batch]:
    """Return the episodes of a list of transitions, or of a list of episodes (such lists).

    A transition is a dictionary with obs, action (or act), reward (or rew), done (or terminated and
    truncated), and optionally next_obs (or obs_next).

    - Episodes end after every row that is done. ``done`` means terminated, unless ``truncated`` is
      given. A last row that is not done is truncated, since the recording stopped there.
    - A missing next observation is the observation of the next row; the last row repeats its own.
    - Tensors become arrays; rewards, ends and integer actions of one element become scalars.
    - Other keys are kept if all transitions have them.

    Args:
        data: The list.
        name: What it is called in messages.
    """
    if not isinstance(data, list) or not data:
        raise ValueError(f"{name} must hold a list of transitions or episodes")
    lists = data if all(isinstance(item, list) for item in data) else [data]
    runs: list[list[dict[str, Any]]] = []
    for transitions in lists:
        if not all(isinstance(row, dict) for row in transitions):
            raise ValueError(f"{name} must hold a list of dictionaries, or a list of such lists")
        rows = [{_OTHER_NAMES.get(key, key): row[key] for key in row} for row in transitions]
        runs += _cut_transitions(rows, name)
    if not runs:
        raise ValueError(f"{name} has no transitions")
    shared = set(runs[0][0]).intersection(*(row for run in runs for row in run))
    return [_stack_transitions(run, shared, name) for run in runs]


def _cut_transitions(rows: list[dict[str, Any]], name: str) -> Iterator[list[Any]]:
    """Split rows into episodes; set the next observation, terminated and truncated of each row."""
    start = 0
    for i, row in enumerate(rows):
        for key in ("obs", "act", "rew"):
            if key not in row:
                raise ValueError(
                    f"a transition in {name} has no {key!r}: {', '.join(map(str, row))}"
                )
        if "done" not in row and "terminated" not in row:
            raise ValueError(f"a transition in {name} has neither 'done' nor 'terminated'")
        truncated = _flag(row.get("truncated", False))
        done = _flag(row.pop("done", truncated))
        terminated = _flag(row.get("terminated", done and not truncated))
        last = i + 1 == len(rows)
        end = done or terminated or truncated
        row["terminated"] = terminated
        row["truncated"] = truncated or ((end or last) and not terminated)
        if row.get("obs_next") is None:
            row["obs_next"] = row["obs"] if end or last else rows[i + 1]["obs"]
        if end or last:
            yield rows[start : i + 1]
            start = i + 1


def _flag(value: Any) -> bool:
    return bool(np.asarray(value).item())


def _stack_transitions(rows: list[dict[str, Any]], keys: set[str], name: str) -> Batch:
    try:
        episode = Batch.stack([{key: row[key] for key in rows[0] if key in keys} for row in rows])
    except (TypeError, ValueError) as error:
        raise ValueError(f"the transitions in {name} do not match: {error}") from None
    episode = episode.to_numpy()
    rewards = episode.rew
    if not isinstance(rewards, np.ndarray) or rewards.size != len(rows):
        raise ValueError(f"{name} has rewards that are not single numbers: {describe(rewards)}")
    episode.rew = rewards.reshape(-1)
    episode.act = flat_actions(episode.act)
    return episode


def flat_actions(act: Any) -> Any:
    """Return integer actions [N, 1] as [N]."""
    is_one_number = isinstance(act, np.ndarray) and act.dtype.kind in "iu" and act.shape[1:] == (1,)
    return act[:, 0] if is_one_number else act
