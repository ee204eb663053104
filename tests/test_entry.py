"""The documents' entry functions, for real but short."""

import copy
import json
from pathlib import Path
from typing import ClassVar

import gymnasium
import pytest
import torch

import guerdon.entry
from guerdon.compat.di_engine import BaseRewardModel
from guerdon.compat.nervex.model import FCDiscreteNet
from guerdon.compat.nervex.policy import CommonPolicy
from guerdon.config import compose
from guerdon.entry import (
    eval_pipeline,
    serial_pipeline,
    serial_pipeline_reward_model_offpolicy,
    serial_pipeline_reward_model_onpolicy,
)
from guerdon.policy import DQN, POLICIES, register_policy
from guerdon.reward import register_reward_model

pytestmark = pytest.mark.filterwarnings("ignore:keys without a meaning in guerdon")
SHORT = {
    "env": {"id": "CartPole-v1", "n_envs": 2},
    "policy": {"type": "dqn", "model": {"hidden": [8]}},
    "collect": {"n_step": 10, "buffer_size": 500, "warmup_steps": 20},
    "learn": {"batch_size": 8, "updates_per_collect": 1},
    "eval": {"episodes": 2},
}
TUTORIAL = {
    "env": {
        "env_manager_type": "base",
        "import_names": ["gymnasium"],
        "env_type": "cartpole",
        "actor_env_num": 3,
        "evaluator_env_num": 2,
    },
    "policy": {
        "use_cuda": False,
        "policy_type": "entry_counter",
        "import_names": ["math"],
        "on_policy": False,
        "model": {"hidden": [8]},
        "learn": {"train_step": 2, "batch_size": 16, "learning_rate": 0.01},
    },
    "replay_buffer": {"meta_maxlen": 300},
    "actor": {"n_sample": 6},
    "evaluator": {"n_episode": 4, "stop_val": 1e9},
    "commander": {},
}


class Counter(CommonPolicy):
    """Learns nothing, and counts."""

    def _forward_learn(self, data):
        assert len(data["obs"]) == self._cfg.learn.batch_size
        return {"total_loss": 0.0}


register_policy("entry_counter", Counter)


def short(tmp_path, **sections):
    config = copy.deepcopy(SHORT)
    config["run"] = {"dir": str(tmp_path / "run")}
    return {**config, **sections}


def written(summary):
    return compose(Path(summary["run_dir"]) / "config.yaml")


def test_a_dictionary_trains(tmp_path):
    config = short(tmp_path)
    before = copy.deepcopy(config)
    summary = serial_pipeline(config, seed=3, max_env_step=60)
    assert summary["stop_reason"] == "max_steps"
    assert 60 <= summary["env_steps"] < 80
    assert summary["seed"] == 3
    assert config == before
    on_disk = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert on_disk["env_steps"] == summary["env_steps"]


def test_updates_are_a_budget_too(tmp_path):
    summary = serial_pipeline(short(tmp_path), max_train_iter=3)
    assert summary["stop_reason"] == "max_updates"
    assert summary["updates"] == 3


def test_a_python_file_trains(tmp_path):
    file = tmp_path / "config.py"
    file.write_text(f"main_config = {short(tmp_path)!r}\n")
    assert serial_pipeline(str(file), max_env_step=30)["env_steps"] >= 30
    assert serial_pipeline(compose(short(tmp_path / "again")), seed=5, max_env_step=30)["seed"] == 5


def test_a_preset_trains_with_another_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summary = serial_pipeline("cartpole_ppo", policy_fn=Counter, max_env_step=16)
    assert written(summary).policy["type"] == "entry_counter"
    assert written(summary).env.id == "CartPole-v1"
    assert Path(summary["run_dir"]).parts[0] == "runs"


def test_the_layout_of_the_tutorial_is_understood(tmp_path):
    config = {**copy.deepcopy(TUTORIAL), "run": {"dir": str(tmp_path / "run")}}
    before = copy.deepcopy(config)
    summary = serial_pipeline(config, max_env_step=60)
    assert config == before
    made = written(summary)
    assert (made.env.id, made.env.backend, made.env.n_envs) == ("CartPole-v1", "base", 3)
    assert (made.env.imports, made.imports[0]) == (["gymnasium"], "math")
    assert (made.eval.n_envs, made.eval.episodes, made.eval.target_return) == (2, 4, 1e9)
    assert (made.collect.n_step, made.collect.buffer_size) == (6, 300)
    assert (made.learn.batch_size, made.learn.updates_per_collect) == (16, 2)
    assert made.run.device == "cpu"
    assert made.policy["learn"]["learning_rate"] == 0.01
    assert summary["updates"] == 20


def test_an_id_goes_before_the_type_of_an_environment(tmp_path):
    config = {**copy.deepcopy(TUTORIAL), "run": {"dir": str(tmp_path / "run")}}
    config["env"] |= {"env_type": "classic", "env_id": "Acrobot-v1"}
    assert written(serial_pipeline(config, max_env_step=6)).env.id == "Acrobot-v1"
    config["env"] = {"env_type": "NoSuchThing-v0"}
    with pytest.raises(ValueError, match="guerdon has no environment 'NoSuchThing-v0'"):
        serial_pipeline(config, max_env_step=6)


def test_a_key_of_the_tutorial_that_guerdon_has_not_is_named(tmp_path):
    config = {**copy.deepcopy(TUTORIAL), "run": {"dir": str(tmp_path / "run")}}
    config["learner"] = {"hooks": "log"}
    with pytest.warns(UserWarning, match=r"are ignored: .*learner\.hooks \(not known to guerdon"):
        serial_pipeline(config, max_env_step=6)


@pytest.mark.parametrize("nothing", [None, 3])
def test_what_is_no_config_is_refused(nothing):
    with pytest.raises(ValueError, match=f"needs a config and got {nothing}: give a preset"):
        serial_pipeline(nothing)


class Unregistered(DQN):
    """Nobody knows it by a name."""


def test_a_policy_class_needs_no_registration(tmp_path):
    summary = serial_pipeline(
        short(tmp_path, policy={"type": "mine", "gamma": 0.5}),
        policy_fn=Unregistered,
        max_env_step=30,
    )
    assert written(summary).policy["type"] == "Unregistered"
    assert written(summary).policy["gamma"] == 0.5
    assert POLICIES.get("Unregistered") is Unregistered


def test_environments_and_networks_may_be_the_callers(tmp_path):
    made = []

    def make(setting):
        made.append(setting)
        return gymnasium.make("CartPole-v1", max_episode_steps=setting)

    config = short(tmp_path)
    del config["env"]
    model = FCDiscreteNet(4, 2, [8])
    before = [p.detach().clone() for p in model.parameters()]
    summary = serial_pipeline(
        config, env_setting=(make, [5, 6], [7, 7]), model=model, max_env_step=60
    )
    assert sorted(made) == [5, 6, 7, 7]
    assert summary["eval_return_mean"] == 7
    assert any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_a_run_is_evaluated(tmp_path):
    serial_pipeline(short(tmp_path), max_env_step=40)
    found = eval_pipeline(tmp_path / "run", episodes=3, seed=1)
    assert found["episodes"] == 3


# --- with a reward model


class Shown(BaseRewardModel):
    """Pays for a pole that leans to the right; of the guide's style."""

    made: ClassVar[list] = []

    def __init__(self, config, device, tb_logger):
        super().__init__(config, device, tb_logger)
        self.rounds = 0
        self.made.append(self)

    def collect_data(self, data):
        assert {"obs", "action", "reward", "next_obs", "done"} <= data[0].keys()

    def train(self):
        self.rounds += 1
        self.tb_logger.add_scalar("rounds", self.rounds, self.rounds)

    def clear_data(self, iter):  # noqa: A002
        pass

    def estimate(self, data):
        return [{**item, "reward": item["obs"][2:3] * self.cfg.factor} for item in data]


register_reward_model("entry_shown", Shown)
CREATE = {
    "env": {"type": "cartpole"},
    "policy": {"type": "dqn"},
    "reward_model": {"type": "entry_shown"},
}


def rewarded(tmp_path, name="run", **policy):
    config = short(tmp_path, reward_model={"factor": 2.0})
    config["run"]["dir"] = str(tmp_path / name)
    config["env"] = {"collector_env_num": 2}
    config["policy"] = {"model": {"hidden": [8]}, **policy}
    return config


def last_line(tmp_path, name="run"):
    return json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])


def test_a_reward_model_and_a_policy_train_together(tmp_path):
    config = rewarded(tmp_path)
    before = copy.deepcopy(config)
    pair = (config, CREATE)
    summary = serial_pipeline_reward_model_offpolicy(pair, seed=3, max_env_step=60)
    assert config == before
    assert (summary["seed"], summary["stop_reason"]) == (3, "max_steps")
    assert written(summary).reward.terms["entry_shown"]["factor"] == 2.0
    assert last_line(tmp_path)["reward/entry_shown/rounds"] == 6  # after every 10 steps
    assert abs(last_line(tmp_path)["reward/mean"]) < 0.5  # twice an angle


def test_a_reward_model_may_be_trained_before_and_not_beside_the_policy(tmp_path):
    serial_pipeline_reward_model_offpolicy(
        (rewarded(tmp_path), CREATE), max_env_step=60, pretrain_reward=True, cooptrain_reward=False
    )
    assert Shown.made[-1].rounds == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["reward/entry_shown/rounds"] == 1
    assert "reward/entry_shown/rounds" not in last_line(tmp_path)


def test_an_on_policy_policy_learns_from_a_reward_model(tmp_path):
    config = short(tmp_path, reward={"type": "entry_shown", "factor": 1.0})
    config |= {"policy": {"type": "ppo"}, "collect": {"n_step": 20}, "learn": {"batch_size": 10}}
    summary = serial_pipeline_reward_model_onpolicy(config, max_train_iter=2)
    assert summary["updates"] == 2
    assert last_line(tmp_path)["reward/entry_shown/rounds"] == 2


@pytest.mark.parametrize(
    ("pipeline", "policy", "message"),
    [
        (
            serial_pipeline_reward_model_onpolicy,
            "dqn",
            "is for on-policy policies, but dqn is not one",
        ),
        (
            serial_pipeline_reward_model_offpolicy,
            "ppo",
            "use serial_pipeline_reward_model_onpolicy",
        ),
    ],
)
def test_the_wrong_kind_of_policy_is_sent_to_the_other_function(pipeline, policy, message):
    with pytest.raises(ValueError, match=message):
        pipeline(f"cartpole_{policy}")


def test_the_documents_find_what_they_look_for():
    for name in guerdon.entry.__all__:
        assert callable(getattr(guerdon.entry, name))
