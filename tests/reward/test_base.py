import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.config.errors import ConfigError
from guerdon.data import Batch, Demonstrations
from guerdon.reward import (
    REWARDS,
    ConstantReward,
    EnvReward,
    EpisodeRewardModel,
    RewardConfig,
    RewardModel,
    Setting,
    create_reward_model,
    make_reward,
    register_reward_model,
)
from guerdon.reward.base import as_rewards
from guerdon.reward.trained import Memory
from tests.reward.cases import transitions


class DoubleConfig(RewardConfig):
    factor: float = 2.0


class Double(RewardModel):
    Config = DoubleConfig

    def score(self, batch):
        assert isinstance(batch.rew, torch.Tensor)
        return batch.rew * self.config.factor


def test_a_model_is_made_by_its_name():
    model = create_reward_model({"type": "constant", "value": 3.0})
    assert isinstance(model, ConstantReward)
    assert model.config.value == 3.0
    assert model.device == torch.device("cpu")
    assert model.name == "constant"
    assert Double({}).name == "double"


def test_a_model_is_made_for_a_setting():
    setting = Setting(seed=3, device="meta")
    model = create_reward_model({"type": "env"}, setting)
    assert model.setting is setting
    assert model.device == torch.device("meta")


def test_models_are_registered_by_a_decorator_or_by_a_call():
    try:
        assert register_reward_model("test_decorated")(Double) is Double
        register_reward_model("test_called", Double)
        for name in ("test_decorated", "test_called"):
            model = create_reward_model({"type": name, "factor": 3.0})
            assert model.estimate(transitions(2)).rew.tolist() == [3.0, 6.0]
    finally:
        for name in ("test_decorated", "test_called"):
            REWARDS._classes.pop(name, None)


def test_an_unknown_model_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match="constant"):
        create_reward_model({"type": "constnt"})
    with pytest.raises(ValueError, match=r"needs 'type': one of .*constant"):
        create_reward_model({})


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match="valeu"):
        create_reward_model({"type": "constant", "valeu": 1.0})


def test_a_model_takes_a_config_or_a_dictionary():
    assert Double({"factor": 4.0}).config == Double(DoubleConfig(factor=4.0)).config


def test_a_model_has_to_implement_score():
    with pytest.raises(NotImplementedError, match=r"RewardModel does not implement score\(\)"):
        RewardModel({}).estimate(transitions())


def test_most_models_need_no_data_and_no_training():
    model = EnvReward({})
    model.collect_data(transitions())
    assert model.pretrain() is None
    assert model.train() is None
    model.clear_data(3)
    assert model.fitted
    assert (model.fields, model.collects, model.requirements(model.config)) == ((), (), set())
    assert model.training_state() == model.portable_state() == {}
    model.load_training_state({})


def test_demonstrations_are_refused_by_models_that_do_not_learn_from_them():
    with pytest.raises(TypeError, match="envreward does not learn from demonstrations"):
        EnvReward({}).load_expert_data(None)


def test_a_state_for_a_model_without_one_is_refused():
    with pytest.raises(ValueError, match=r"envreward has the state \[\], but was given"):
        EnvReward({}).load_training_state({"weights": 1})


class Learned(RewardModel):
    """Has a network, an optimizer, a generator and a memory, and says nothing about its state."""

    def __init__(self, config, setting=None):
        super().__init__(config, setting)
        self.network = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.1)
        self.generator = torch.Generator()
        self.memory = Memory(8)

    def score(self, batch):
        return self.network(batch.obs).squeeze(-1)

    def learn(self):
        self.optimizer.zero_grad()
        noise = torch.rand(1, 2, generator=self.generator)
        self.memory.add(Batch(obs=noise.numpy()))
        self.network(noise).sum().backward()
        self.optimizer.step()


def test_parts_with_a_state_are_saved_by_default():
    one, other = Learned({}), Learned({})
    one.learn()
    other.load_training_state(one.training_state())
    for model in (one, other):
        model.learn()
    assert torch.equal(one.network.weight, other.network.weight)
    assert len(one.memory) == len(other.memory) == 2


def test_rewards_carry_no_gradient():
    reward = make_reward(Learned({}))
    batch = Batch(obs=torch.zeros(3, 2), rew=torch.zeros(3))
    assert not reward.resolve(batch).rew.requires_grad


def test_a_term_of_weight_0_cannot_spoil_the_sum():
    reward = make_reward({"terms": {"constant": {"value": 2.0}, "env": {"weight": 0.0}}})
    batch = Batch(rew=torch.tensor([float("inf"), 1.0]))
    assert reward.resolve(batch).rew.tolist() == [2.0, 2.0]


# --- estimate


def test_estimating_returns_what_it_was_given():
    model, data = Double({}), transitions(2)
    found = model.estimate(data)
    assert isinstance(found.rew, np.ndarray)
    assert found.rew.dtype == np.float32
    assert data.rew.tolist() == [1.0, 2.0]
    assert set(found.keys()) == set(data.keys())
    tensors = model.estimate(data.to_torch())
    assert isinstance(tensors.rew, torch.Tensor)
    assert tensors.rew.tolist() == [2.0, 4.0]
    listed = model.estimate([{"obs": np.zeros(2), "action": 0, "reward": 4.0}])
    assert listed[0]["reward"] == 8.0


@pytest.mark.parametrize("convert", [Batch.to_numpy, Batch.to_torch])
def test_a_single_transition_has_a_single_reward(convert):
    found = Double({}).estimate(convert(transitions(3))[1])
    assert found.rew == 4.0
    assert found.obs.tolist() == [1.0, -1.0]


class Counted(EpisodeRewardModel):
    """Reward: steps of the episode so far, times the action."""

    fields = ("act",)
    collects = ("obs",)
    annotations = ("steps",)

    def new_memory(self, n_envs):
        return np.zeros(n_envs, int)

    def annotate(self, batch, memory):
        steps = []
        for first in batch.first:
            memory = np.where(first, 0, memory) + 1
            steps.append(memory)
        return {"steps": np.stack(steps), "unused": None}, memory

    def score(self, batch):
        return batch.steps * batch.act


def test_transitions_of_no_run_are_annotated_as_whole_episodes():
    data = transitions(5).replace(act=np.ones(5, int))
    data.terminated = np.array([False, True, False, False, True])
    assert Counted({}).estimate(data).rew.tolist() == [1, 2, 1, 2, 3]
    assert "steps" not in Counted({}).estimate(data)
    grid = Batch.stack([data, data.replace(truncated=data.act == 1)], axis=1)
    assert Counted({}).estimate(grid).rew.T.tolist() == [[1, 2, 1, 2, 3], [1] * 5]
    assert Counted({}).estimate(data.to_torch()).rew.tolist() == [1, 2, 1, 2, 3]
    assert Counted({}).estimate(data[3]).rew == 1.0


def test_annotations_that_are_there_are_used():
    data = transitions(2).replace(act=np.ones(2, int), steps=np.array([7, 9]))
    assert Counted({}).estimate(data).rew.tolist() == [7, 9]


# --- settings of demonstrations


def demonstrations(**options):
    return Demonstrations([transitions(3)], **options)


def test_a_setting_takes_the_spaces_of_demonstrations():
    line, two = spaces.Box(-5, 5, (2,), np.float32), spaces.Discrete(4)
    known = demonstrations(observation_space=line, action_space=two)
    setting = Setting.of(known, seed=5)
    assert (setting.observation_space, setting.action_space, setting.seed) == (line, two, 5)


def test_a_setting_infers_spaces_but_never_the_number_of_actions():
    setting = Setting.of(demonstrations(action_space=spaces.Discrete(9)))
    assert setting.observation_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(
        ValueError,
        match=r"number of actions of these demonstrations is unknown: set their 'action_space'",
    ):
        Setting.of(demonstrations())
    parts = {"a": np.zeros((3, 4, 4, 3), np.uint8), "b": np.zeros((3, 1))}
    rows = transitions(3).replace(obs=parts, obs_next=parts, act=np.zeros((3, 2)))
    setting = Setting.of(Demonstrations([rows]))
    assert setting.observation_space["a"] == spaces.Box(0, 255, (4, 4, 3), np.uint8)
    assert setting.observation_space["b"].shape == (1,)
    assert setting.action_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)


# --- as_rewards


def test_rewards_take_the_shape_of_others():
    rewards = as_rewards(2.0, torch.zeros(3, 2))
    assert rewards.dtype == torch.float32
    assert rewards.tolist() == [[2.0, 2.0]] * 3


def test_rewards_become_float_tensors():
    like = torch.zeros(2, dtype=torch.float64)
    for value in (2.0, np.array([2.0, 2.0]), torch.tensor([2, 2]), [2, 2]):
        rewards = as_rewards(value, like)
        assert isinstance(rewards, torch.Tensor)
        assert rewards.dtype == torch.float32
        assert rewards.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("value", [None, "high", [1.0], torch.zeros(3), torch.zeros(2, 1), {}, []])
def test_what_is_no_reward_is_named(value):
    with pytest.raises(ValueError, match=r"'mine' returns .* for transitions of shape \(2,\): its"):
        as_rewards(value, torch.zeros(2), "mine")
