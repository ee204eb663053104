"""Small runs, and what has to be the same in two of them."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon.compat.di_engine import BaseRewardModel
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.run import Summary, train

HALF, WHOLE = 128, 256
CLOCK = {"time", "time/fps", "time/time_elapsed"}

_ON_POLICY = {"collect": {"n_step": 32}, "learn": {"batch_size": 16, "repeat": 2}}
# The ring wraps around, and half of it is random actions.
_OFF_POLICY = {
    "collect": {"n_step": 8, "warmup_steps": 40, "buffer_size": 90},
    "learn": {"batch_size": 16, "updates_per_collect": 2},
}


def _model(**options: Any) -> dict[str, Any]:
    return {"model": {"hidden": [8], **options}}


CASES: dict[str, dict[str, Any]] = {
    "ppo": _ON_POLICY
    | {"env": {"id": "guerdon/Identity-v0"}, "policy": {"type": "ppo", **_model()}},
    # Its native environments reset in a step of their own.
    "ppo_normalized": _ON_POLICY
    | {
        "env": {"id": "CartPole-v1"},
        "policy": {"type": "ppo", **_model(normalize_obs=True)},
        "reward": {"terms": {"env": {}}, "normalize": True, "clip": [-10, 10]},
    },
    "ppo_continuous": _ON_POLICY
    | {"env": {"id": "guerdon/Target-v0"}, "policy": {"type": "ppo", **_model()}},
    "a2c": {
        "collect": {"n_step": 32},
        "env": {"id": "guerdon/Identity-v0"},
        "policy": {"type": "a2c", **_model()},
    },
    "impala": _ON_POLICY
    | {
        "env": {"id": "guerdon/Identity-v0"},
        "learn": {"batch_size": 16},
        "policy": {"type": "impala", **_model()},
    },
    "dqn_prioritized_3_step": _OFF_POLICY
    | {
        "env": {"id": "CartPole-v1"},
        "policy": {
            "type": "dqn", "prioritized": True, "n_step": 3, "beta": 1.0, "target_update_every": 7,
            **_model(),
        },
    },
    "sac": _OFF_POLICY
    | {"env": {"id": "guerdon/Target-v0"}, "policy": {"type": "sac", **_model()}},
    "sac_discrete": _OFF_POLICY
    | {"env": {"id": "guerdon/Identity-v0"}, "policy": {"type": "sac", **_model()}},
    "td3_normalized": _OFF_POLICY
    | {
        "env": {"id": "guerdon/Target-v0"},
        "policy": {"type": "td3", **_model(normalize_obs=True)},
        "reward": {"terms": {"env": {}}, "normalize": True},
    },
    "ddpg": _OFF_POLICY
    | {"env": {"id": "guerdon/Target-v0"}, "policy": {"type": "ddpg", **_model()}},
    "bc": {
        "env": {"id": "CartPole-v1"},
        "learn": {"batch_size": 16, "updates_per_collect": 4},
        "policy": {"type": "bc", "expert_data_path": "zoo:cartpole", **_model()},
    },
    "dagger": _OFF_POLICY
    | {
        "env": {"id": "guerdon/Identity-v0"},
        "policy": {
            "type": "dagger", "expert": f"{__name__}:shown", "beta_steps": 200, **_model()
        },
    },
    "iqlearn": _OFF_POLICY
    | {
        "env": {"id": "CartPole-v1"},
        "policy": {"type": "iqlearn", "expert_data_path": "zoo:cartpole", **_model()},
    },
    "iqlearn_continuous": _OFF_POLICY
    | {
        "env": {"id": "Pendulum-v1", "max_episode_steps": 20},
        "policy": {
            "type": "iqlearn", "expert_data_path": "zoo:pendulum", "temperature": "auto", **_model()
        },
    },
}  # fmt: skip


def shown(obs: np.ndarray) -> np.ndarray:
    """The right actions in Identity."""
    return obs.argmax(-1)


def config_of(case: str, directory: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """The config of a case; the sections are changes of it."""
    config = copy.deepcopy(CASES[case])
    config["env"]["n_envs"] = 3
    config["eval"] = {"every": 64, "episodes": 2}
    config["run"] = {
        "dir": str(directory), "max_steps": WHOLE, "log_every": 32, "checkpoint_every": 32,
    }  # fmt: skip
    for section, changes in sections.items():
        config[section] = config.get(section, {}) | changes
    return config


def run(case: str, directory: Path, seed: int = 3, **sections: dict[str, Any]) -> Summary:
    return train(config_of(case, directory, **sections), seed=seed, display="none")


def resume(directory: Path, *overrides: str, exact: bool = False) -> Summary:
    return train(None, *overrides, resume=directory, exact=exact, display="none")


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, less what a clock says."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in line if name not in CLOCK} for line in lines]


def leaves(state: Any, path: str = "") -> dict[str, Any]:
    """All leaves of a state by their path."""
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, list | tuple):
        items = enumerate(state)
    else:
        return {path: state}
    return {k: v for key, value in items for k, v in leaves(value, f"{path}/{key}").items()}


def state_of(directory: Path, step: int) -> dict[str, Any]:
    """The leaves of a checkpoint, less what a clock says."""
    state, found = load_checkpoint(directory / "checkpoints", step)
    assert found == step
    clock = {"/monitor/progress/seconds", "/monitor/logged/1"}
    found = leaves(state)
    assert clock <= found.keys()
    return {path: value for path, value in found.items() if path not in clock}


def same(one: Any, other: Any) -> bool:
    """Whether two leaves are equal bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        one, other = one.numpy(), other.numpy()
    if isinstance(one, np.ndarray):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and one.tobytes() == other.tobytes()
    return bool(one == other) or (one != one and other != other)


def differences(one: Path, other: Path, step: int) -> list[str]:
    """The leaves in which two runs' checkpoints of a step differ."""
    first, second = state_of(one, step), state_of(other, step)
    missing = first.keys() ^ second.keys()
    return sorted(missing | {k for k in first.keys() - missing if not same(first[k], second[k])})


def assert_same_run(one: Path, other: Path) -> None:
    """Two runs are the same but for the clock: every checkpoint, the metrics, the summary."""
    steps = checkpoint_steps(one / "checkpoints")
    assert steps
    # A kill may leave one that was about to be removed; the next save removes it.
    assert {*steps} <= {*checkpoint_steps(other / "checkpoints")}
    for step in steps:
        assert not (found := differences(one, other, step)), (step, found)
    for first, second in zip(metrics_of(one), metrics_of(other), strict=True):
        assert first == second, (first, second)
    for pointer in ("checkpoints/latest", "checkpoints/scheduled", "best/latest"):
        assert (one / pointer).read_bytes() == (other / pointer).read_bytes()
    first, second = (json.loads((each / "summary.json").read_text()) for each in (one, other))
    for summary in (first, second):
        assert summary.pop("wall_seconds") > 0
        assert summary.pop("fps") > 0
    assert first == second


class Idle(BaseRewardModel):
    """Has nothing to learn."""

    def collect_data(self, data):
        pass

    def clear_data(self, iter):  # noqa: A002
        pass

    def train(self):
        pass

    def estimate(self, data):
        return data
