"""A reward model written by the guide alone, with lists of dictionaries."""

import copy
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from guerdon.data import Batch
from guerdon.reward import REWARDS, BaseRewardModel, Setting, create_reward_model, make_reward
from guerdon.reward.guide import Scalars, adapted
from guerdon.training.state_files import encode_part


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
        terminated=np.zeros((3, 2), bool), truncated=np.zeros((3, 2), bool), mask=mask, cut=~mask,
    )  # fmt: skip


def test_it_is_made_with_its_own_keys_as_attributes():
    model = create_reward_model(CONFIG, "cpu", None)
    assert model.cfg.update_per_collect == 5


def test_it_learns_and_rewards_as_a_term_of_a_composition():
    reward = make_reward({"terms": {"test_guided": {**CONFIG, "weight": 2.0}, "env": {}}})
    data, (model, _) = rollout(), reward.terms["test_guided"]
    assert reward.learns
    reward.collect_data(data)
    assert len(model.model.train_data) == 5
    reward.train()
    resolved = reward.resolve(data)
    with torch.no_grad():
        expected = model.model.reward_model(torch.from_numpy(data.obs)).squeeze(-1).numpy()
    np.testing.assert_allclose(resolved.rew_terms.test_guided, expected, rtol=1e-6)
    np.testing.assert_allclose(resolved.rew, 2.0 * expected + 1.0, rtol=1e-6)
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


def drawing():
    REWARDS.register("test_guided", Drawing, override=True)
    reward = make_reward(CONFIG)
    reward.setup(Setting(None, None, seed=7))
    reward.collect_data(rollout())
    return reward, reward.models[0].model


def test_everything_that_a_class_of_its_own_holds_is_saved_and_restored():
    first, model = drawing()
    first.train()
    state = copy.deepcopy(first.state_dict())
    second, other = drawing()
    other.train_data.clear()
    second.load_state_dict(state)
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
    encode_part("reward", first.state_dict())  # a file can hold it


def test_a_state_of_another_class_is_refused():
    reward, _ = drawing()
    state = reward.state_dict()
    state["terms"]["test_guided"]["model"]["unheard_of"] = 1
    with pytest.raises(ValueError, match="Drawing has no 'unheard_of'"):
        reward.load_state_dict(state)


def test_what_it_draws_depends_on_the_seed_alone_and_disturbs_nobody():
    drawn = []
    for offset in (0, 5):
        torch.rand(offset)
        reward, model = drawing()
        before = torch.get_rng_state()
        reward.train()
        assert torch.equal(torch.get_rng_state(), before)
        drawn.append(model.drawn)
    assert drawn[0] == drawn[1]


def test_rewards_may_be_set_in_place_and_the_data_stays_as_it_is():
    reward, model = drawing()
    data = rollout()
    before = copy.deepcopy(data)
    rew = reward.score(data)
    expected = model.reward_model(torch.from_numpy(data.obs)).squeeze(-1).detach().numpy()
    np.testing.assert_allclose(rew, expected, rtol=1e-6)
    assert data == before


def test_pretraining_is_training_on_what_it_took_in_when_it_was_made():
    reward, model = drawing()
    assert reward.pretrains
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
        state = reward.state_dict()
    assert not {"note", "networks", "callback"} & state["terms"]["test_guided"]["model"].keys()


class Seldom(Guided):
    """Learns every other time."""

    calls = 0

    def train(self):
        self.calls += 1
        if self.calls % 2:
            super().train()


class Quiet:
    """A logger that keeps nothing."""

    def add_scalar(self, *_):
        pass


def test_training_that_was_none_says_nothing():
    REWARDS.register("test_guided", Seldom, override=True)
    reward = make_reward(CONFIG)
    reward.collect_data(rollout())
    assert [bool(reward.train()) for _ in range(4)] == [True, False, True, False]


def test_training_without_a_word_is_found_in_the_networks():
    REWARDS.register("test_guided", Seldom, override=True)
    reward = make_reward(CONFIG, tb_logger=Quiet())
    reward.collect_data(rollout())
    trained = {"reward/test_guided/trained": 1.0}
    assert [reward.train() for _ in range(4)] == [trained, {}, trained, {}]


class Unsure(Guided):
    """Is set up, and draws whenever it is asked."""

    def setup(self, setting):
        self.scale = torch.rand(1) + setting.n_envs

    def estimate(self, data):
        return [{**item, "reward": self.scale + torch.rand(1)} for item in data]


def test_a_model_is_set_up_and_its_estimate_is_pure_even_if_it_draws():
    REWARDS.register("test_guided", Unsure, override=True)
    reward = make_reward(CONFIG)
    reward.setup(Setting(None, None, n_envs=5, seed=7))
    scale = float(reward.models[0].model.scale)
    assert 5 < scale < 6
    data, before = rollout(), torch.get_rng_state()
    first = reward.score(data)
    assert len(set(first.ravel().tolist())) == 6
    np.testing.assert_array_equal(reward.score(data), first)
    assert torch.equal(torch.get_rng_state(), before)
    state = reward.state_dict()["terms"]["test_guided"]["drawn"]
    reward.score(data)
    assert torch.equal(reward.state_dict()["terms"]["test_guided"]["drawn"], state)


def test_models_of_any_style_can_be_parts_of_a_reward():
    scalars, plain = Scalars(), create_reward_model({"type": "constant"})
    assert adapted(plain, scalars) is plain
    guided = adapted(create_reward_model(CONFIG, "cpu", scalars), scalars)
    guided.collect_data(rollout())
    assert set(guided.train()) == {"reward_loss"}
