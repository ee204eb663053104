"""The three stages on a real PushCube-v1, a few steps of each: `make test-slow`."""

import json

import numpy as np
import pytest

from guerdon.collect import Collector
from guerdon.config import compose
from guerdon.data import Batch
from guerdon.data.frames import load_frames
from guerdon.training.fit import fit
from guerdon.training.fit_files import compose_fit
from guerdon.training.parts import make_env
from guerdon.training.run import train
from tests.collect.filling import collector_into
from tests.envs.test_maniskill import HAND, _vulkan, push, slow  # noqa: F401 - a fixture

LENGTH = 8  # steps of an episode: a push takes about six, and pictures take a tenth of a second
TASK = (
    "env=pushcube",
    "policy=ppo",
    "policy.model.keys=[state]",
    "env.n_envs=2",
    "env.backend=base",
    f"env.kwargs.control_mode={HAND['control_mode']}",
    f"env.max_episode_steps={LENGTH}",
)


def first_pushes(batch, state):  # noqa: ARG001
    """The first robot pushes the cube into the goal, and the second holds still."""
    acts = np.stack([push(row) for row in batch.obs["state"]])
    acts[1:] = 0
    return Batch(act=acts)


def collect(folder):
    with make_env(compose(None, TASK).env) as env, collector_into(folder, env.n_envs) as data:
        Collector(first_pushes, env, watch=data.watch).collect(n_episode=8)
    return data.counts


def fit_into(folder, data):
    model = {"image_size": [3, 64, 64], "width": 4, "hidden_dim": 16, "num_spatial_blocks": 2}
    options = {
        "model": model,
        "data": {f"{kind}_dir": str(data / kind) for kind in ("positive", "negative")},
        "global_batch_size": 16,
        "num_epochs": 4,
        "save_dir": str(folder),
    }
    return fit(compose_fit({"reward": options}), display="none")


def learn(folder, classifier):
    return train(
        None,
        *TASK,
        "reward=classifier",
        f"reward.checkpoint_path={classifier}",
        "reward.min_precision=0",
        "reward.min_recall=0",
        "collect.n_step=16",
        "learn.batch_size=8",
        "learn.repeat=1",
        "run.max_steps=32",
        "eval.every=32",
        "eval.episodes=2",
        "eval.n_envs=2",
        f"run.dir={folder}",
        display="none",
    )


class TestStages:
    """All in one test: on a CPU, the first picture of a process takes a minute."""

    pytestmark = slow

    def test_from_pictures_to_a_policy(self, tmp_path):
        assert collect(tmp_path / "data") == (4, 4)
        folders = [tmp_path / "data" / kind for kind in ("positive", "negative")]
        frames = load_frames(*folders, ["base_camera"])
        shown = frames.labels.reshape(8, LENGTH)
        assert shown[:4].any(1).all()
        assert not shown[:, 0].any()
        assert not shown[4:].any()

        fitted = fit_into(tmp_path / "classifier", tmp_path / "data")
        assert fitted["validation"]["frames"] % LENGTH == 0

        summary = learn(tmp_path / "run", tmp_path / "classifier")
        assert summary["stop_reason"] == "max_steps"
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        for name, key in (
            ("eval_success_rate", "eval/success_rate"),
            ("eval_model_success_rate", "reward/success_rate"),
        ):
            assert summary[name] == last[key]
            assert summary[name] in (0, 0.5, 1)
        assert summary["eval_success_rate"] == pytest.approx(0)


class TestPresets:
    pytestmark = slow

    @pytest.mark.parametrize("preset", ["pushcube_ppo", "pickcube_ppo"])
    def test_a_preset_runs(self, preset, tmp_path):
        summary = train(
            preset, "env.n_envs=2", "collect.n_step=16", "learn.batch_size=8", "learn.repeat=1",
            "run.max_steps=32", "eval.every=32", "eval.episodes=1", "eval.n_envs=1",
            f"env.max_episode_steps={LENGTH}", f"run.dir={tmp_path}", display="none",
        )  # fmt: skip
        assert summary["updates"] == 2
        assert summary["eval_success_rate"] in (0, 1)
