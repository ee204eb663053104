import numpy as np
import pytest
import torch

from guerdon.config.errors import ConfigError
from guerdon.reward import (
    REWARDS,
    ConstantReward,
    EnvReward,
    RewardConfig,
    RewardModel,
    create_reward_model,
    register_reward_model,
)
from guerdon.reward.base import as_rewards
from tests.reward.cases import transitions


class DoubleConfig(RewardConfig):
    factor: float = 2.0


class Double(RewardModel):
    Config = DoubleConfig

    def estimate(self, data):
        return data.replace(rew=data.rew * self.config.factor)


def test_a_model_is_made_by_its_name():
    model = create_reward_model({"type": "constant", "value": 3.0})
    assert isinstance(model, ConstantReward)
    assert model.config.value == 3.0
    assert model.device == "cpu"


def test_a_model_is_made_with_the_documented_arguments():
    logger = object()
    model = create_reward_model({"type": "env"}, "cpu", logger)
    assert model.tb_logger is logger


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


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match="valeu"):
        create_reward_model({"type": "constant", "valeu": 1.0})


def test_a_model_takes_a_config_or_a_dictionary():
    assert Double({"factor": 4.0}).config == Double(DoubleConfig(factor=4.0)).config


def test_a_model_has_to_say_how_it_estimates():
    with pytest.raises(NotImplementedError, match="neither score"):
        RewardModel({}).estimate(transitions())


def test_most_models_need_no_data_and_no_training():
    model = EnvReward({})
    model.collect_data(transitions())
    model.train()
    model.clear_data(3)
    assert not model.learns
    assert model.state_dict() == {}
    model.load_state_dict({})


def test_demonstrations_are_refused_by_models_that_do_not_learn_from_them():
    with pytest.raises(TypeError, match="EnvReward does not learn from demonstrations"):
        EnvReward({}).load_expert_data(None)


def test_a_state_for_a_model_without_one_is_refused():
    with pytest.raises(ValueError, match="EnvReward keeps no state"):
        EnvReward({}).load_state_dict({"weights": 1})


# --- as_rewards


def test_rewards_take_the_shape_of_others():
    rewards = as_rewards(2.0, np.zeros((3, 2)))
    assert rewards.dtype == np.float32
    assert rewards.tolist() == [[2.0, 2.0]] * 3


def test_arrays_stay_arrays_and_tensors_become_arrays():
    assert as_rewards(np.array([1, 2]), np.zeros(2)).tolist() == [1.0, 2.0]
    computed = torch.tensor([1.0, 2.0], requires_grad=True)
    assert isinstance(as_rewards(computed, np.zeros(2)), np.ndarray)


def test_beside_tensors_rewards_are_tensors():
    like = torch.zeros(2, dtype=torch.float64)
    for value in (2.0, np.array([2.0, 2.0])):
        rewards = as_rewards(value, like)
        assert isinstance(rewards, torch.Tensor)
        assert rewards.dtype == torch.float32
        assert rewards.tolist() == [2.0, 2.0]
