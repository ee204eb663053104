"""The code of DI-engine's guide, with ``guerdon.compat`` before its imports."""

# ruff: noqa: E501 - lines of the guide

import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from guerdon.compat.di_engine.reward_model import (
    REWARD_MODEL_REGISTRY,
    BaseRewardModel,
    create_reward_model,
)
from guerdon.compat.di_engine.worker import create_workers
from guerdon.compat.nervex.attr_dict import AttrDict as EasyDict
from guerdon.data import load_demonstrations
from guerdon.reward import REWARDS
from tests.compat.snippets import run
from tests.rounding import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:keys without a meaning in guerdon")

CREATE = EasyDict(
    env={"type": "cartpole", "import_names": ["dizoo.classic_control.cartpole.envs"]},
    env_manager={"type": "base"},
    policy={"type": "dqn"},
)


def main_config(tmp_path, **reward_model):
    """A pair's first part, in the shape of the package's CartPole configs."""
    return EasyDict(
        exp_name=str(tmp_path / "exp"),
        env={"collector_env_num": 2, "evaluator_env_num": 1, "n_evaluator_episode": 1,
             "stop_value": 195},
        policy={
            "cuda": False, "discount_factor": 0.97, "nstep": 1,
            "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]},
            "learn": {"batch_size": 16, "learning_rate": 1e-3, "update_per_collect": 2},
            "collect": {"n_sample": 20},
            "other": {"eps": {"type": "exp", "start": 0.9, "end": 0.1, "decay": 1000},
                      "replay_buffer": {"replay_buffer_size": 2000}},
        },
        reward_model=reward_model,
        collect={"warmup_steps": 20},  # guerdon's own key: its default is longer than these runs
    )  # fmt: skip


def expert_list(number=200):
    rows = load_demonstrations("zoo:cartpole").transitions()
    return [
        {"obs": torch.from_numpy(rows.obs[i]), "action": torch.tensor([int(rows.act[i])])}
        for i in range(number)
    ]


@pytest.fixture
def expert_file(tmp_path):
    rows = load_demonstrations("zoo:cartpole").transitions()
    data = [
        {"obs": torch.from_numpy(rows.obs[i]), "next_obs": torch.from_numpy(rows.obs_next[i]),
         "action": torch.tensor([int(rows.act[i])]), "reward": torch.tensor([1.0]),
         "done": bool(rows.terminated[i])}
        for i in range(300)
    ]  # fmt: skip
    path = tmp_path / "expert_data.pkl"
    path.write_bytes(pickle.dumps(data))
    return path


# --- the entry function

ENTRY = """
    from ding.entry import serial_pipeline_reward_model_offpolicy

    serial_pipeline_reward_model_offpolicy((main_config, create_config), cooptrain_reward = True, pretrain_reward = False)
"""


def test_the_entry_takes_a_pair_of_configs(tmp_path, monkeypatch, expert_file):
    monkeypatch.chdir(tmp_path)
    reward = {"type": "gail", "expert_data_path": str(expert_file), "update_per_collect": 2}
    main = main_config(tmp_path, **reward)
    main.policy.learn.update_per_collect = 1
    text = ENTRY.replace("create_config)", "create_config), max_env_step = 60")
    run(text, main_config=main, create_config=CREATE)
    (folder,) = (tmp_path / "runs").rglob("summary.json")
    assert folder.is_file()


# --- the loop by hand

CREATED = """
    from ding.reward_model import create_reward_model

    tb_logger = SummaryWriter(os.path.join('./{}/log/'.format(cfg.exp_name), 'serial'))
    reward_model = create_reward_model(cfg.reward_model, policy.collect_mode.get_attribute('device'), tb_logger)
"""
TRAINED = """
    new_data = collector.collect(train_iter=learner.train_iter, policy_kwargs=collect_kwargs)
    reward_model.collect_data(new_data)
    reward_model.train()
    reward_model.clear_data(iter=learner.train_iter)
"""
ESTIMATED = """
    train_data = replay_buffer.sample(learner.policy.get_attribute('batch_size'), learner.train_iter)
    train_data_augmented = reward_model.estimate(train_data)
    learner.train(train_data_augmented, collector.envstep)
"""


@pytest.mark.parametrize("kind", ["gail", "red", "pwil", "pdeil", "rnd", "icm"])
@pytest.mark.filterwarnings("ignore:red: ")
def test_the_loop_of_the_guide(kind, tmp_path, monkeypatch, expert_file):
    monkeypatch.chdir(tmp_path)
    given = {"type": kind, "update_per_collect": 3, "input_size": 5, "clear_buffer_per_iters": 1}
    if kind in ("rnd", "icm"):
        given |= {"obs_shape": 4, "action_shape": 2, "batch_size": 16}
    else:
        given |= {"expert_data_path": str(expert_file)}
    if kind in ("pwil", "pdeil"):
        del given["update_per_collect"]
    cfg = main_config(tmp_path, **given)
    cfg.exp_name = "exp"
    parts = create_workers((cfg, CREATE), seed=1)
    names = {**parts._asdict(), "cfg": cfg, "os": os, "SummaryWriter": SummaryWriter}
    names |= run(CREATED, **names)
    before = [value.clone() for value in parts.policy.policy.model.parameters()]
    for round_ in range(2):
        names = run(TRAINED, **{**names, "collect_kwargs": {"eps": 0.5}})
        assert len(names["new_data"]) == 20
        for _ in range(2):
            names = run(ESTIMATED, **names)
        assert parts.learner.train_iter == 2 * (round_ + 1)
    assert parts.collector.envstep == 40
    names["tb_logger"].close()
    parts.collector.close()
    assert parts.replay_buffer.sample(41) is None
    data = names["train_data"]
    assert names["train_data_augmented"] is data, "the guide's estimate changes what it is given"
    assert {"obs", "action", "reward", "next_obs", "done"} <= data[0].keys()
    rewards = torch.cat([item["reward"] for item in data])
    assert len(set(rewards.tolist())) > 1
    assert not all(map(torch.equal, before, parts.policy.policy.model.parameters()))
    if kind != "pwil":  # which has nothing to train
        events = EventAccumulator("exp/log/serial")
        events.Reload()
        assert "reward_model/reward_loss" in events.Tags()["scalars"] or kind == "pdeil"
        assert events.Tags()["scalars"]


def test_rewards_of_the_loop_reach_the_update(tmp_path):
    """Two learners that differ in the estimated reward alone get other weights."""
    weights = []
    for value in (0.0, 5.0):
        parts = create_workers((main_config(tmp_path), CREATE), seed=1)
        parts.collector.collect(train_iter=0)
        data = parts.replay_buffer.sample(16, 0)
        for item in data:
            item["reward"] = torch.tensor([value])
        metrics = parts.learner.train(data, parts.collector.envstep)
        weights.append(metrics["train/loss"])
        parts.collector.close()
        assert (parts.replay_buffer._buffer.rew[:, :8] == 1.0).all()
    assert weights[0] != weights[1]


def test_a_loop_by_hand_has_single_transitions(tmp_path):
    config = main_config(tmp_path)
    config.policy.nstep = 3
    with pytest.raises(ValueError, match="set 'nstep' to 1 and 'priority' to false; or use serial"):
        create_workers((config, CREATE))
    config = EasyDict(policy={}, env=config.env)
    with pytest.raises(ValueError, match="choose an off-policy policy"):
        create_workers((config, EasyDict(CREATE, policy={"type": "ppo"})))


# --- RED, as its page describes it

RED = """
    from ding.reward_model.red_irl_model import RedRewardModel, SENet

    model = RedRewardModel(config, 'cpu', tb_logger)
    model.train()
    model.estimate(data)
    model.collect_data(data)
    model.clear_data()
"""


class Log:
    def __init__(self):
        self.rows = []

    def add_scalar(self, tag, value, step):
        self.rows.append((tag, value, step))


def transition(obs, action):
    return {"obs": torch.as_tensor(obs), "action": torch.tensor([action]), "reward": torch.ones(1)}


@pytest.mark.usefixtures("expert_file")
@pytest.mark.filterwarnings("ignore:red: ")
def test_red_has_the_documented_names_and_default_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = Log()
    expert = expert_list(1)[0]
    data = [
        {**expert, "reward": torch.ones(1)},
        transition(np.full(4, 3.0, np.float32), 0),
    ]
    first = data[0]
    left = run(RED, config=EasyDict(input_size=5), tb_logger=log, data=data)
    model = left["model"]
    assert {key: model.cfg[key] for key in type(model).config} == {
        "type": "red", "expert_data_path": "expert_data.pkl", "sample_size": 1000, "sigma": 5,
        "batch_size": 64, "hidden_size": 128, "update_per_collect": 100,
        "clear_buffer_per_iters": 1,
    }  # fmt: skip
    assert isinstance(model.online_net, left["SENet"])
    assert len(model.expert_data) == 240  # a fifth is held out
    assert {"obs", "action"} <= model.expert_data[0].keys()
    assert model.train_iter == 100
    assert data[0] is first
    assert 0 < float(data[1]["reward"]) < float(data[0]["reward"]) <= 1
    assert float(model.model.network.sigma) == 5
    assert ("reward_model/reward_loss", 100) in [(tag, step) for tag, _, step in log.rows]
    model.train()
    assert model.train_iter == 100, "it is fitted once"


@pytest.mark.filterwarnings("ignore:red: ")
def test_estimating_in_place_is_a_switch(expert_file):
    data = [transition(np.zeros(4, np.float32), 1)]
    for in_place in (True, False):
        cfg = {"type": "red", "expert_data_path": str(expert_file), "in_place": in_place}
        model = create_reward_model(cfg)
        model.train()
        given = model.reward_deepcopy(data)
        found = model.estimate(given)
        assert (found is given) is in_place
        assert (float(given[0]["reward"]) == float(found[0]["reward"])) is in_place
    assert float(data[0]["reward"]) == 1.0


def test_demonstrations_come_as_a_list():
    model = create_reward_model(
        {"type": "gail", "input_size": 5, "update_per_collect": 2, "batch_size": 64,
         "clear_buffer_per_iters": 1}
    )  # fmt: skip
    with pytest.raises(ValueError, match="gail has no data yet: call load_expert_data"):
        model.train()
    model.load_expert_data(expert_list())
    model.collect_data([transition(np.ones(4, np.float32), 0)] * 70)
    model.train()
    assert model.train_iter == 2
    model.clear_data()
    assert len(model.model.memory) == 0
    model.collect_data([transition(np.ones(4, np.float32), 0)] * 3)
    model.train()
    model.clear_data(iter=7)
    assert len(model.model.memory) == 0


def test_actions_are_numbers_unless_their_count_is_given():
    for given, kind in (({}, "Box"), ({"action_shape": 2}, "Discrete")):
        model = create_reward_model({"type": "gail", "input_size": 5, **given})
        model.load_expert_data(expert_list())
        assert type(model.model.setting.action_space).__name__ == kind


def test_an_option_that_nothing_reads_is_named():
    with pytest.warns(UserWarning, match="'hiden_size' of the reward model gail is not read"):
        create_reward_model({"type": "gail", "hiden_size": 3})


def test_intrinsic_rewards_are_added():
    model = create_reward_model(
        {"type": "rnd", "obs_shape": 4, "intrinsic_reward_weight": 2.0,
         "intrinsic_reward_type": "add", "batch_size": 64}
    )  # fmt: skip
    rows = [
        {**transition(np.random.default_rng(i).normal(size=4).astype(np.float32), 0),
         "next_obs": torch.full((4,), float(i))}
        for i in range(80)
    ]  # fmt: skip
    model.collect_data(rows)
    model.train()
    alone = [float(item["reward"]) for item in model.model.estimate(rows)]
    added = [float(item["reward"]) for item in model.estimate(rows)]
    assert min(alone) > 0
    assert_close(np.float32(added), 1 + 2 * np.array(alone))


# --- classes of one's own, written from the guide


class MyGailNet(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.feature = nn.Sequential(
            nn.Linear(input_size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, 1), nn.Sigmoid()
        )

    def forward(self, data):
        return self.feature(data)

    def learn(self, train_data, expert_data):
        return (
            -torch.log(self.forward(train_data) + 1e-8).mean()
            - torch.log(1 - self.forward(expert_data) + 1e-8).mean()
        )


def pairs(data):
    return torch.stack([torch.cat([item["obs"], item["action"].float()]) for item in data])


class MyGail(BaseRewardModel):
    config = dict(  # noqa: C408, RUF012 - as in the guide
        type="my_gail", learning_rate=1e-3, update_per_collect=5, batch_size=16, input_size=5,
        hidden_size=16, clear_buffer_per_iters=1,
    )  # fmt: skip

    def __init__(self, config, device, tb_logger):
        super().__init__()
        self.cfg = config
        self.device = device
        self.tb_logger = tb_logger
        self.reward_model = MyGailNet(config.input_size, config.hidden_size).to(device)
        self.opt = torch.optim.Adam(self.reward_model.parameters(), config.learning_rate)
        self.train_data = []
        self.train_iter = 0
        self.load_expert_data()

    def load_expert_data(self):
        self.expert_data = pickle.loads(Path(self.cfg.expert_data_path).read_bytes())

    def collect_data(self, data):
        self.train_data.extend(data)

    def _train(self):
        chosen = random.sample(self.train_data, self.cfg.batch_size)
        expert = random.sample(self.expert_data, self.cfg.batch_size)
        loss = self.reward_model.learn(pairs(chosen), pairs(expert))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def train(self):
        for _ in range(self.cfg.update_per_collect):
            loss = self._train()
            self.tb_logger.add_scalar("reward_model/reward_loss", loss, self.train_iter)
            self.train_iter += 1

    def estimate(self, data):
        train_data_augmented = self.reward_deepcopy(data)
        with torch.no_grad():
            reward = self.reward_model.forward(pairs(train_data_augmented)).squeeze(-1).cpu()
        for item, rew in zip(train_data_augmented, reward, strict=True):
            item["reward"] = -torch.log(rew + 1e-8)
        return train_data_augmented

    def clear_data(self, iter):  # noqa: A002
        assert hasattr(self.cfg, "clear_buffer_per_iters"), "Clear failed"
        if iter % self.cfg.clear_buffer_per_iters == 0:
            self.train_data.clear()


class MyRed(MyGail):
    """Fitted once to the expert, with arguments and effects as on its page."""

    config = {**MyGail.config, "type": "my_red", "sigma": 5}  # noqa: RUF012

    def __init__(self, config, device, tb_logger):
        super().__init__(config, device, tb_logger)
        self.target_net = MyGailNet(config.input_size, config.hidden_size)
        self.online_net = self.reward_model
        self.train_once_flag = False

    def train(self):
        if self.train_once_flag:
            return
        states = pairs(self.expert_data)
        for _ in range(self.cfg.update_per_collect):
            loss = (self.online_net(states) - self.target_net(states).detach()).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.tb_logger.add_scalar("reward_model/reward_loss", loss, self.train_iter)
            self.train_iter += 1
        self.train_once_flag = True

    def estimate(self, data):  # in place
        states = pairs(data)
        with torch.no_grad():
            errors = (self.online_net(states) - self.target_net(states)).square().squeeze(-1)
        for item, error in zip(data, errors, strict=True):
            item["reward"] = torch.exp(-self.cfg.sigma * error)

    def collect_data(self, data):
        pass

    def clear_data(self):
        self.cleared = getattr(self, "cleared", 0) + 1


class MyPwil(MyGail):
    """A table instead of a network; demonstrations and new data come as arguments."""

    config = {**MyGail.config, "type": "my_pwil", "alpha": 5, "beta": 5}  # noqa: RUF012
    requires = frozenset({"demonstrations"})

    def load_expert_data(self, data=None):
        self.expert_data = data
        self.reward_table = {}

    def train(self, data):
        expert = pairs(self.expert_data)
        for state in pairs(data):
            cost = (expert - state).norm(dim=-1).min()
            self.reward_table[tuple(state.tolist())] = self.cfg.alpha * torch.exp(-cost).item()

    def estimate(self, data):
        return [
            {**item, "reward": torch.tensor(self.reward_table.get(tuple(state.tolist()), 0.0))}
            for item, state in zip(data, pairs(data), strict=True)
        ]


@pytest.mark.parametrize("kind", [MyGail, MyRed, MyPwil])
def test_classes_of_ones_own_run(kind, tmp_path, expert_file):
    from guerdon.compat.di_engine.entry import serial_pipeline_reward_model_offpolicy

    name = kind.config["type"]
    REWARD_MODEL_REGISTRY.register(name)(kind)
    try:
        main = main_config(tmp_path, type=name, expert_data_path=str(expert_file))
        main.run = {"dir": str(tmp_path / "run"), "log_every": 20}
        summary = serial_pipeline_reward_model_offpolicy((main, CREATE), max_env_step=80)
        assert summary["env_steps"] == 80
        model = create_reward_model(main.reward_model, "cpu", Log())
        assert type(model) is kind
        assert model.cfg.update_per_collect == 5
    finally:
        del REWARDS._classes[name]
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert (f"reward/{name}/reward_loss" in text) is (kind is not MyPwil)
    if kind is not MyPwil:
        events = EventAccumulator(str(tmp_path / "run" / "tb"))
        events.Reload()
        assert events.Scalars(f"reward/{name}/reward_loss")


def test_a_class_without_an_argument_is_cleared_at_its_interval(expert_file):
    from guerdon.reward import create_reward_model as core

    REWARD_MODEL_REGISTRY.register("my_red", MyRed)
    try:
        options = {"expert_data_path": str(expert_file), "clear_buffer_per_iters": 3}
        adapter = core({"type": "my_red", **options})
    finally:
        del REWARDS._classes["my_red"]
    for step in range(1, 8):
        adapter.clear_data(step)
    assert adapter.model.cleared == 2


def test_default_values_of_a_class_are_copies():
    config = MyGail.default_config()
    config.batch_size = 3
    assert MyGail.config["batch_size"] == 16
    assert BaseRewardModel.default_config() == {}
    with pytest.raises(Exception, match="unknown reward 'nothing'"):
        REWARD_MODEL_REGISTRY.get("nothing")
    assert type(create_reward_model({"type": "red"})).__name__ == "RedRewardModel"
