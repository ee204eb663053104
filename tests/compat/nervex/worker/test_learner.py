"""Learner hooks: their positions, priorities and files, in a run and in a loop of one's own."""

from collections import Counter

import pytest
import torch
from easydict import EasyDict
from gymnasium import spaces
from torch import nn

import guerdon
from guerdon.compat.nervex.data import BufferManager
from guerdon.compat.nervex.policy import CommonPolicy
from guerdon.compat.nervex.rl_utils import q_1step_td_data, q_1step_td_error
from guerdon.compat.nervex.worker import (
    BaseLearner,
    LearnerHook,
    register_learner_hook,
)
from guerdon.compat.nervex.worker.learner import HOOKS, learner_of
from guerdon.data.unpickle import load_weights
from guerdon.entry import serial_pipeline

OPTIONS = {
    "env": {"n_envs": 2},
    "collect": {"n_step": 16, "warmup_steps": 16},
    "learn": {"batch_size": 8, "updates_per_collect": 3},
    "eval": {"episodes": 1, "n_envs": 1},
    "display": "none",
}


class Noting(LearnerHook):
    """A hook in nerveX's style."""

    seen = []  # noqa: RUF012

    def __init__(self, *args, ext_args=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.word = (ext_args or {}).get("word")

    def __call__(self, engine):
        self.seen.append((self.name, self.position, engine.last_iter.val, self.word))


@pytest.fixture(autouse=True)
def _noting():
    Noting.seen.clear()
    register_learner_hook("noting", Noting)
    yield
    HOOKS._classes.pop("noting")


def hook(position, **options):
    return {"type": "noting", "position": position, **options}


def run(tmp_path, callback):
    run = {"max_steps": 48, "dir": tmp_path / "run"}
    return guerdon.train("cartpole_dqn", callback=callback, **OPTIONS, run=run)


def test_hooks_around_a_run_and_its_updates(tmp_path):
    cfg = {position: hook(position) for position in LearnerHook.positions}
    result = run(tmp_path, BaseLearner(EasyDict(hook=cfg)))
    updates = result["updates"]
    assert updates >= 3
    around = [(name, number) for number in range(updates) for name in ("before_iter", "after_iter")]
    assert [(position, number) for _, position, number, _ in Noting.seen] == [
        ("before_run", 0),
        *around,
        ("after_run", updates),
    ]


def test_hooks_of_one_position_by_priority():
    cfg = {
        "late": hook("after_run", priority=30),
        "early": hook("after_run", priority=10, ext_args={"word": "hello"}),
        "default": hook("after_run"),
        "named": hook("after_run", name="other name", priority=20),
    }
    learner = BaseLearner({"hook": cfg})
    learner.register_hook(Noting("same", 20, position="after_run"))
    learner.call_hook("after_run")
    assert [(name, word) for name, _, _, word in Noting.seen] == [
        ("early", "hello"),
        ("other name", None),
        ("same", None),
        ("late", None),
        ("default", None),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": "between"}, "'bad' has no position 'between': use one of before_run"),
        ({"position": "after_run", "priority": -1}, "priority of the hook 'bad' is -1"),
        ({"position": "after_run", "type": "notin"}, "unknown hook 'notin': did you mean"),
    ],
)
def test_bad_hooks(options, message):
    with pytest.raises(ValueError, match=message):
        BaseLearner({"hook": {"bad": {"type": "noting", **options}}})


def test_weights_are_saved_and_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save = {"type": "save_ckpt", "position": "after_iter", "ext_args": {"freq": 2}}
    result = run(tmp_path, BaseLearner({"hook": {"save": save}}))
    (folder,) = tmp_path.glob("ckptBaseLearner*")
    numbers = range(0, result["updates"], 2)
    assert {path.name for path in folder.iterdir()} == {
        f"iteration_{number}.pth.tar" for number in numbers
    }
    last = folder / f"iteration_{numbers[-1]}.pth.tar"
    learner = BaseLearner(
        {
            "load_path": str(last),
            "hook": {"load": {"type": "load_ckpt", "position": "before_run"}},
        }
    )
    said = []
    learner.policy, learner.info = result.policy, said.append
    with torch.no_grad():
        next(result.policy.parameters()).zero_()
    learner.call_hook("before_run")
    assert learner.train_iter == numbers[-1]
    saved = load_weights(last)["model"]
    assert all(value.equal(saved[name]) for name, value in result.policy.state_dict().items())
    assert said == [f"loaded {last}"]
    learner.save_checkpoint()
    assert len([*tmp_path.glob(f"ckptBaseLearner*/{last.name}")]) == 2


def test_metrics_are_shown(tmp_path):
    show = {"type": "log_show", "position": "after_iter", "ext_args": {"freq": 3}}
    reduce = {"type": "log_reduce", "position": "after_iter"}
    result = run(tmp_path, BaseLearner({"hook": {"show": show, "reduce": reduce}}))
    lines = (result.run_dir / "log.txt").read_text().splitlines()
    shown = [line for line in lines if "iteration " in line and "loss=" in line]
    assert len(shown) == -(-result["updates"] // 3)
    assert "iteration 0: " in shown[0]


# --- of configs


def test_hooks_of_a_config_in_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {
        "env": {"env_type": "cartpole", "actor_env_num": 2, "evaluator_env_num": 1},
        "policy": {"policy_type": "dqn", "learn": {"batch_size": 8, "train_step": 3}},
        "evaluator": {"n_episode": 1},
        "collect": {"n_step": 16, "warmup_steps": 16},
        "run": {"max_steps": 48, "dir": "run"},
        "learner": {
            "hook": {
                "mine": hook("after_iter"),
                "save": {"type": "save_ckpt", "position": "after_run", "priority": 20},
                "log_show": {"type": "log_show", "position": "after_iter"},
            }
        },
    }
    result = serial_pipeline(EasyDict(config))
    assert Counter(name for name, *_ in Noting.seen) == {"mine": result["updates"]}
    saved = [path.name for path in tmp_path.glob("ckptBaseLearner*/*")]
    assert saved == [f"iteration_{result['updates']}.pth.tar"]
    assert "loss=" not in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(
    "config", ["cartpole_dqn", {}, {"learner": None}, {"learner": {"hook": {}}}]
)
def test_configs_without_hooks_need_no_learner(config):
    assert learner_of(config) is None


# --- in a loop of one's own


class Values(CommonPolicy):
    """Learns the values of two actions."""

    def _create_model_from_cfg(self, cfg, model_type=None):  # noqa: ARG002
        return nn.Sequential(nn.Linear(1, 2, bias=False))

    def _forward_learn(self, data):
        q = self._model(data["obs"])
        rows = q_1step_td_data(
            q, torch.zeros_like(q), data["action"], data["action"], data["reward"], data["done"],
            data["weight"],
        )  # fmt: skip
        loss = q_1step_td_error(rows, 0.9)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        error = q.gather(1, data["action"][:, None])[:, 0] - data["reward"]
        return {"total_loss": loss.item(), "priority": error.detach().abs().tolist()}


def test_a_learner_trains_with_samples_of_a_buffer():
    policy = Values(
        {"type": "values", "learn": {"learning_rate": 0.1}},
        spaces.Box(-1, 1, (1,)),
        spaces.Discrete(2),
    )
    buffer = BufferManager({"meta_maxlen": 32, "alpha": 1.0}, seed=0)
    for number in range(32):
        action = number % 2
        buffer.push_data(
            {"obs": torch.ones(1), "action": torch.tensor(action), "reward": 1.0 - 2 * action,
             "done": torch.tensor(1.0)}
        )  # fmt: skip
    learner = BaseLearner({"hook": {"mine": hook("after_iter")}})
    learner.policy = policy.learn_mode
    for _ in range(60):
        learner.train(buffer.sample(8, learner.train_iter))
        buffer.update(learner.priority_info)
    assert learner.train_iter == len(Noting.seen) == 60
    assert learner.log_buffer["total_loss"] < 0.01
    assert learner.model is policy._model
    assert policy._model[0].weight.flatten().tolist() == pytest.approx([1.0, -1.0], abs=0.1)
