"""Tianshou's trainers: their functions are called when its documents say, and policies learn."""

# ruff: noqa: ARG002, ARG005 - the documents' interfaces

import inspect

import gymnasium
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from guerdon.compat.tianshou.data import Collector, ReplayBuffer
from guerdon.compat.tianshou.policy import BasePolicy
from guerdon.compat.tianshou.trainer import offpolicy_trainer, onpolicy_trainer
from guerdon.data import Batch
from guerdon.envs import make_vec
from guerdon.reward import Setting, make_reward
from tests.compat.tianshou.test_document import Walk


class Still(BasePolicy):
    """Does nothing, and notes what it learns from."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def forward(self, batch, state=None):
        return Batch(act=np.zeros(len(batch.obs), int))

    def learn(self, batch, **options):
        self.sizes.append((len(batch), options.get("batch_size"), options.get("repeat")))
        return {"loss": float(len(self.sizes))}


def trained(trainer, tmp_path=None, stop=lambda mean: False, **changes):
    policy, calls = Still(), []

    def note(name):
        return lambda *given: calls.append((name, *given))

    options = {
        "policy": policy,
        "train_collector": Collector(policy, Walk(), ReplayBuffer(size=100)),
        "test_collector": Collector(policy, Walk()),
        "max_epoch": 2, "step_per_epoch": 3, "collect_per_step": 5,
        "episode_per_test": 2, "batch_size": 4,
        "train_fn": lambda epoch, env_step: calls.append(("train", epoch, env_step)),
        "test_fn": lambda epoch, env_step: calls.append(("test", epoch, env_step)),
        "save_fn": lambda saved: calls.append(("save", saved is policy)),
        "stop_fn": stop, **changes,
    }  # fmt: skip
    if tmp_path is not None:
        options["writer"] = SummaryWriter(tmp_path)
    result = trainer(**options)
    if tmp_path is not None:
        options["writer"].close()
    return result, calls, policy


def test_functions_are_called_in_the_order_of_the_loop():
    result, calls, policy = trained(offpolicy_trainer)
    assert calls == [
        ("train", 1, 0), ("train", 1, 5), ("train", 1, 10),
        ("test", 1, 15), ("save", True), ("train", 2, 15),
        ("train", 2, 20), ("train", 2, 25),
        ("test", 2, 30), ("train", 3, 30),
    ]  # fmt: skip
    assert policy.sizes == [(4, 4, None)] * 6
    assert result == {
        "train_step": 30, "train_episode": 6, "best_reward": 15.0, "best_result": "15.00 ± 0.00"
    }  # fmt: skip


def test_on_policy_reads_everything_once_and_counts_minibatches():
    result, calls, policy = trained(
        onpolicy_trainer, collect_per_step=2, repeat_per_collect=2, step_per_epoch=6
    )
    assert policy.sizes == [(10, 4, 2)] * 2  # 2 passes over 10 rows in 3 minibatches an epoch
    assert [call for call in calls if call[0] == "test"] == [("test", 1, 10), ("test", 2, 20)]
    assert result["train_episode"] == 4


def test_training_stops_where_a_test_is_good_enough():
    result, calls, _ = trained(offpolicy_trainer, stop=lambda mean: mean >= 15, max_epoch=9)
    assert result["train_step"] == 15
    assert calls[-3][0] == "test"
    assert calls[-2] == ("save", True)


def test_functions_may_take_the_epoch_alone():
    epochs = []
    trained(offpolicy_trainer, train_fn=epochs.append, max_epoch=1)
    assert epochs == [1, 1, 1, 2]


def test_the_writer_gets_losses_and_returns(tmp_path):
    trained(offpolicy_trainer, tmp_path)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    read = {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    assert read["loss"] == [(5 * i, float(i)) for i in range(1, 7)]
    assert read["train/rew"] == [(5 * i, 15.0) for i in range(1, 7)]
    assert read["test/rew"] == [(15, 15.0), (30, 15.0)]
    assert read["test/len"] == [(15, 5.0), (30, 5.0)]


def test_the_arguments_come_in_the_documents_order():
    names = list(inspect.signature(offpolicy_trainer).parameters)
    assert names[:9] == [
        "policy", "train_collector", "test_collector", "max_epoch", "step_per_epoch",
        "collect_per_step", "episode_per_test", "batch_size", "update_per_step",
    ]  # fmt: skip


class Reinforce(BasePolicy):
    """A policy gradient as it is written for Tianshou: everything in `__init__`, NumPy batches."""

    def __init__(self, space, gamma=0.95):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(space.shape[0], 32), nn.Tanh(), nn.Linear(32, 2))
        self.optim = torch.optim.Adam(self.parameters(), 5e-3)
        self.gamma = gamma

    def forward(self, batch, state=None):
        logits = self.net(torch.as_tensor(batch.obs))
        act = torch.distributions.Categorical(logits=logits).sample()
        return Batch(act=(act if self.training else logits.argmax(-1)).numpy())

    def process_fn(self, batch, buffer, indice):
        returns, total = np.zeros(len(batch)), 0.0
        for i in reversed(range(len(batch))):  # episodes one after the other
            total = batch.rew[i] + self.gamma * total * (1 - batch.done[i])
            returns[i] = total
        batch.returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        return batch

    def learn(self, batch, batch_size=64, repeat=1, **_):
        losses = []
        for _ in range(repeat):
            for part in batch.split(batch_size, generator=0):
                logits = self.net(torch.as_tensor(part.obs))
                log_prob = torch.distributions.Categorical(logits=logits).log_prob(
                    torch.as_tensor(part.act)
                )
                loss = -(log_prob * torch.as_tensor(part.returns)).mean()
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
                losses.append(loss.item())
        return {"loss": np.mean(losses)}


def test_a_policy_of_ones_own_learns_from_several_environments():
    torch.manual_seed(0)
    env = make_vec("CartPole-v1", 4)
    policy = Reinforce(env.observation_space)
    result = onpolicy_trainer(
        policy, Collector(policy, env, ReplayBuffer(size=20_000)),
        Collector(policy, gymnasium.make("CartPole-v1")),
        max_epoch=10, step_per_epoch=60, collect_per_step=8, repeat_per_collect=1,
        episode_per_test=5, batch_size=64, stop_fn=lambda mean: mean >= 60,
    )  # fmt: skip
    assert result["best_reward"] >= 60


def test_a_reward_is_trained_beside_the_policy():
    env = gymnasium.make("CartPole-v1")
    policy, setting = Still(), Setting(env.observation_space, env.action_space, on_policy=False)
    given = {"test_collector": Collector(policy, env), "episode_per_test": 1, "batch_size": 4,
             "max_epoch": 1, "step_per_epoch": 3, "collect_per_step": 5}  # fmt: skip
    reward = make_reward({"type": "rnd", "train_every": 5, "batch_size": 4, "warmup": 0}, setting)
    collector = Collector(policy, gymnasium.make("CartPole-v1"), ReplayBuffer(size=100))
    offpolicy_trainer(policy, collector, reward=reward, **given)
    assert reward.models[0].trained > 0
    several = [gymnasium.make("CartPole-v1") for _ in range(2)]
    collector = Collector(policy, several, ReplayBuffer(size=100))
    with pytest.raises(ValueError, match="make the buffer with n_envs=2"):
        offpolicy_trainer(policy, collector, reward=reward, **given)
