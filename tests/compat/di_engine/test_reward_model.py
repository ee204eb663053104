"""Reward models written by DI-engine's guide, with lists of dictionaries."""

import copy
import json
import random
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from guerdon.compat.di_engine import BaseRewardModel
from guerdon.data import Batch
from guerdon.data.serializer import decode_part, encode_part
from guerdon.reward import REWARDS, Setting, create_reward_model, make_reward
from tests.reward.ranked import same_states
from tests.rounding import assert_close


class Network(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.feature = nn.Linear(size, 1)

    def forward(self, data):
        return self.feature(data)

    def learn(self, data):
        return (self.forward(data) - 1.0).square().mean()


class Guided(BaseRewardModel):
    """The guide's outline, filled in."""

    def __init__(self, config, device, tb_logger):
        self.cfg = config
        self.device = device
        self.tb_logger = tb_logger
        torch.manual_seed(0)
        self.reward_model = Network(self.cfg.input_size).to(device)
        self.optimizer = torch.optim.SGD(self.reward_model.parameters(), 0.1)
        self.train_data = []
        self.train_iter = 0

    def collect_data(self, data):
        self.train_data.extend(data)

    def train(self):
        for _ in range(self.cfg.update_per_collect):
            loss = self.reward_model.learn(torch.stack([item["obs"] for item in self.train_data]))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.tb_logger.add_scalar("reward_model/reward_loss", loss.item(), self.train_iter)
            self.train_iter += 1

    def estimate(self, data):
        with torch.no_grad():
            reward = self.reward_model.forward(torch.stack([item["obs"] for item in data]))
        copies = [dict(item) for item in data]
        for item, value in zip(copies, reward.squeeze(-1), strict=True):
            item["reward"] = value
        return copies

    def clear_data(self, iter):  # noqa: A002 - the documented name
        if iter % self.cfg.clear_buffer_per_iters == 0:
            self.train_data.clear()


CONFIG = {"type": "test_guided", "input_size": 2, "update_per_collect": 5,
          "clear_buffer_per_iters": 2}  # fmt: skip


@pytest.fixture(autouse=True)
def _registered():
    REWARDS.register("test_guided", Guided)
    yield
    del REWARDS._classes["test_guided"]


def rollout():
    obs = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
    mask = np.array([[True, True], [True, False], [True, True]])
    return Batch(
        obs=obs, act=np.zeros((3, 2), np.int64), rew=np.ones((3, 2), np.float32), obs_next=obs,
        terminated=np.zeros((3, 2), bool), truncated=np.zeros((3, 2), bool), mask=mask, first=~mask,
    )  # fmt: skip


def test_it_is_made_with_its_own_keys_as_attributes():
    adapter = create_reward_model(CONFIG)
    assert adapter.model.cfg.update_per_collect == 5
    assert adapter.name == "test_guided"


def test_it_learns_and_rewards_as_a_term_of_a_composition():
    reward = make_reward({"terms": {"test_guided": {**CONFIG, "weight": 2.0}, "env": {}}})
    data, (model, _) = rollout(), reward.terms["test_guided"]
    assert reward.collects == ("act", "obs", "obs_next", "terminated")
    reward.collect_data(data)
    assert len(model.model.train_data) == 5
    reward.train()
    resolved = reward.resolve(data.to_torch())
    with torch.no_grad():
        expected = model.model.reward_model(torch.from_numpy(data.obs)).squeeze(-1)
    assert_close(resolved.rew_terms.test_guided, expected)
    assert_close(resolved.rew, 2.0 * expected + 1.0)
    assert (data.rew == 1.0).all()


def test_its_losses_fall_and_are_logged():
    reward = make_reward(CONFIG)
    reward.collect_data(rollout())
    first = reward.train()["reward/test_guided/reward_loss"]
    for _ in range(10):
        last = reward.train()["reward/test_guided/reward_loss"]
    assert last < first


def test_it_is_told_when_to_clear():
    reward = make_reward(CONFIG)
    reward.collect_data(rollout())
    reward.clear_data(3)
    assert reward.models[0].model.train_data
    reward.clear_data(4)
    assert not reward.models[0].model.train_data


# --- what the guide leaves open


class Drawing(Guided):
    """Draws from torch, and keeps all sorts of things."""

    def __init__(self, config, device, tb_logger):  # noqa: ARG002
        BaseRewardModel.__init__(self)  # as in DI-engine, without arguments
        self.cfg, self.tb_logger = config, tb_logger
        self.reward_model = Network(2)
        self.optimizer = torch.optim.Adam(self.reward_model.parameters(), 0.1)
        self.generator = torch.Generator().manual_seed(3)
        self.numbers = np.random.default_rng(4)
        self.train_data, self.drawn, self.train_iter = [], [], 0
        self.notes = {"seen": 0, "scale": torch.ones(2)}
        self.callback = print  # what no file can hold, nor has to
        self.losses, self.ends = deque(maxlen=2), set()
        self.recent = deque(maxlen=3)

    def train(self):
        chosen = torch.randint(len(self.train_data), (3,)).tolist()
        loss = self.reward_model.learn(torch.stack([self.train_data[i]["obs"] for i in chosen]))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.train_iter += 1
        self.notes["seen"] += len(chosen)
        self.losses.append(loss.item())
        self.ends.add(chosen[0])
        self.recent.extend(self.train_data)
        drawn = torch.rand(1, generator=self.generator).item() + self.numbers.random()
        self.drawn.append((chosen[0], drawn))
        self.tb_logger.add_histogram("ignored", loss)
        self.tb_logger.add_scalar("reward_model/reward_loss", loss, self.train_iter)

    def estimate(self, data):
        for item in data:  # in place, and nothing comes back
            item["obs"] *= 1.0
            item["reward"] = self.reward_model(item["obs"])


def drawing(kind=Drawing):
    REWARDS.register("test_guided", kind, override=True)
    reward = make_reward(CONFIG, Setting(seed=7))
    reward.collect_data(rollout())
    return reward, reward.models[0].model


def test_everything_that_a_class_of_its_own_holds_is_saved_and_restored():
    first, model = drawing()
    first.train()
    state = copy.deepcopy(first.training_state())
    second, other = drawing()
    other.train_data.clear()
    second.load_training_state(state)
    assert len(other.train_data) == 5
    assert torch.equal(other.train_data[1]["next_obs"], model.train_data[1]["next_obs"])
    for reward in (first, second):
        reward.train()
        reward.train()
    assert other.drawn == model.drawn
    assert len(model.drawn) == other.train_iter == 3
    assert other.notes["seen"] == 9
    assert (other.losses, other.losses.maxlen) == (model.losses, 2)
    assert other.ends == model.ends
    assert len(other.recent) == other.recent.maxlen == 3
    data = rollout()
    np.testing.assert_array_equal(first.score(data), second.score(data))
    encode_part("reward", first.training_state())  # a file can hold it


def written(state, path):
    """A state as a checkpoint gives it back."""
    part, pieces = encode_part("reward", state)
    path.write_bytes(b"".join(map(bytes, pieces)))
    return decode_part(json.loads(json.dumps(part)), path)


class Late(Drawing):
    """Makes some of what it keeps when it is trained for the first time."""

    def train(self):
        if not hasattr(self, "rounds"):
            self.rounds, self.firsts = 0, []
            self.seen, self.newest = set(), deque(maxlen=2)
        super().train()
        self.rounds += 1
        self.firsts.append(dict(self.train_data[0]))
        self.seen.add(self.rounds)
        self.newest.append(self.rounds)


def test_what_was_first_there_when_it_was_trained_is_restored_too(tmp_path):
    first, _ = drawing(Late)
    for _ in range(3):
        first.train()
    state = written(first.training_state(), tmp_path / "arrays")
    second, model = drawing(Late)
    second.load_training_state(state)
    second.train()
    assert (model.rounds, len(model.firsts), model.seen) == (4, 4, {1, 2, 3, 4})
    assert (list(model.newest), model.newest.maxlen) == ([3, 4], 2)


@pytest.mark.parametrize(
    "part",
    [Network(2), torch.Generator(), np.random.default_rng(0)],
    ids=["network", "torch", "numpy"],
)
def test_a_network_that_is_not_there_yet_is_no_place_for_a_saved_one(part):
    first, model = drawing()
    model.unheard_of = part
    second, other = drawing()
    other.unheard_of = None
    with pytest.raises(ValueError, match="Drawing has no 'unheard_of' to restore"):
        second.load_training_state(first.training_state())


class Careless(Guided):
    """Draws from whatever there is."""

    def __init__(self, config, device, tb_logger):
        super().__init__(config, device, tb_logger)
        self.drawn = [self.draw()]

    def draw(self):
        numbers = np.random.rand(), np.random.randn()  # noqa: NPY002
        return [random.random(), random.gauss(0, 1), *numbers, torch.rand(1).item()]

    def load_expert_data(self):
        self.drawn.append(self.draw())

    def train(self):
        self.drawn.append(self.draw())

    def estimate(self, data):
        return [{**item, "reward": sum(self.draw())} for item in data]


def shared_state():
    """Where the generators are that all share."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def test_what_it_draws_depends_on_the_seed_alone_and_disturbs_nobody():
    drawn, rewards = [], []
    for offset in (1, 5):
        torch.rand(offset)
        np.random.rand(offset)  # noqa: NPY002
        random.gauss(0, offset)
        before = shared_state()
        reward, model = drawing(Careless)
        reward.models[0].load_expert_data()
        reward.train()
        rewards.append(reward.score(rollout()).tolist())
        assert same_states(shared_state(), before)
        drawn.append(model.drawn)
    assert drawn[0] == drawn[1]
    assert rewards[0] == rewards[1]
    numbers = [number for draws in drawn[0] for number in draws]
    assert len(set(numbers)) == 15


def test_what_it_draws_goes_on_where_its_state_was_taken(tmp_path):
    first, model = drawing(Careless)
    first.train()
    state = written(first.training_state(), tmp_path / "arrays")
    second, other = drawing(Careless)
    for _ in range(3):
        second.train()
    second.load_training_state(state)
    for reward in (first, second):
        reward.train()
    assert model.drawn == other.drawn


def test_rewards_may_be_set_in_place_and_the_data_stays_as_it_is():
    reward, model = drawing()
    data = rollout()
    before = copy.deepcopy(data)
    rew = reward.score(data)
    expected = model.reward_model(torch.from_numpy(data.obs)).squeeze(-1).detach().numpy()
    assert_close(rew, expected)
    assert data == before


def test_pretraining_is_training_on_what_it_took_in_when_it_was_made():
    reward, model = drawing()
    assert reward.can_pretrain
    metrics = reward.pretrain()
    assert model.train_iter == 1
    assert metrics["reward/test_guided/reward_loss"].requires_grad is False


@dataclass
class Note:
    number: int


def test_what_cannot_be_saved_is_named():
    reward, model = drawing()
    model.note, model.networks = Note(1), [Network(2)]
    with pytest.warns(UserWarning, match="note, networks of the reward model Drawing cannot be"):
        state = reward.training_state()
    assert not {"note", "networks", "callback"} & state["terms"]["test_guided"]["model"].keys()


class Seldom(Guided):
    """Learns every other time."""

    calls = 0

    def train(self):
        self.calls += 1
        if self.calls % 2:
            super().train()


def test_training_that_was_none_says_nothing():
    REWARDS.register("test_guided", Seldom, override=True)
    reward = make_reward(CONFIG)
    reward.collect_data(rollout())
    assert [bool(reward.train()) for _ in range(4)] == [True, False, True, False]


class Unsure(Guided):
    """Draws in every call."""

    def estimate(self, data):
        return [{**item, "reward": torch.rand(1)} for item in data]


def test_estimating_is_pure_even_if_it_draws():
    reward, _ = drawing(Unsure)
    data, before = rollout(), torch.get_rng_state()
    draws = reward.training_state()["terms"]["test_guided"]["draws"]
    first = reward.score(data)
    assert len(set(first.ravel().tolist())) == 6
    np.testing.assert_array_equal(reward.score(data), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert same_states(reward.training_state()["terms"]["test_guided"]["draws"], draws)


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ("replay", "needs a policy with a replay buffer"),
        ("density", "needs the log-probability of actions"),
    ],
)
def test_what_it_requires_is_checked(requires, message):
    kind = type("Needy", (Guided,), {"requires": frozenset({requires})})
    REWARDS.register("test_guided", kind, override=True)
    with pytest.raises(ValueError, match=message):
        make_reward(CONFIG, Setting())
    model = create_reward_model(CONFIG)
    assert model.requirements(model.config) == {requires}


def test_absorbing_rewards_are_not_clipped():
    with pytest.raises(ValueError, match="would clip the absorbing-state value"):
        make_reward(CONFIG | {"absorbing": True, "clip": (-1, 1)})


def test_it_loads_its_demonstrations_itself():
    kind = type("Imitating", (Careless,), {"requires": frozenset({"demonstrations"})})
    REWARDS.register("test_guided", kind, override=True)
    (model,) = make_reward(CONFIG).models
    model.load_expert_data()
    assert len(model.model.drawn) == 2


class Forgetful(Guided):
    """Computes rewards, and forgets to return them."""

    def estimate(self, data):
        self.rewards = [item["reward"] + 1 for item in data]


class Sparse(Guided):
    """Adds a bonus in place, which is nothing for these transitions."""

    def estimate(self, data):
        for item in data:
            item["reward"] += 0.0


class Short(Guided):
    """Returns too few."""

    def estimate(self, data):
        return data[1:]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Forgetful, "returns NoneType None, and leaves every reward as it was: it has to return"),
        (Short, "it has to return the 6 dictionaries with their 'reward'"),
    ],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_estimate_without_rewards_is_an_error(kind, message, mode):
    REWARDS.register("test_guided", kind, override=True)
    reward, data = make_reward(CONFIG), rollout().to_torch()
    with mode(), pytest.raises(ValueError, match=f"estimate.. of the .*'test_guided' .*{message}"):
        reward.resolve(data)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_estimate_may_add_nothing_in_place(mode):
    REWARDS.register("test_guided", Sparse, override=True)
    with mode():
        assert (make_reward(CONFIG).resolve(rollout().to_torch()).rew == 1.0).all()
