import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.data import Batch
from guerdon.policy import create_policy
from tests.rounding import assert_close

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
BOX, TWO = spaces.Box(-2, 2, (1,), np.float32), spaces.Discrete(2, start=5)
ACTIONS = {"ppo": TWO, "a2c": BOX, "dqn": TWO, "ddpg": BOX, "td3": BOX, "sac": BOX}


def make(name, space=VECTOR, **model):
    return create_policy({"type": name, "model": {"hidden": [4], **model}}, space, ACTIONS[name])


@pytest.mark.parametrize("name", ACTIONS)
def test_one_observation_gives_one_action_and_a_batch_gives_several(name):
    policy = make(name)
    one, several = VECTOR.sample(), np.stack([VECTOR.sample() for _ in range(4)])
    assert ACTIONS[name].contains(policy.predict(one))
    acts = policy.predict(several)
    assert len(acts) == 4
    for obs, act in zip(several, acts, strict=True):
        assert_close(policy.predict(obs), act)


@pytest.mark.parametrize("name", ACTIONS)
def test_it_is_deterministic_unless_told_otherwise_and_keeps_the_mode(name):
    policy, obs = make(name), np.zeros((50, 3), np.float32)
    state = policy.generator.get_state()
    testing = policy.eval()(Batch(obs=obs)).act
    policy.train()
    np.testing.assert_array_equal(policy.predict(obs), testing)
    assert torch.equal(policy.generator.get_state(), state)
    assert len(np.unique(policy.predict(obs, deterministic=False))) > 1
    assert policy.training


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.Box(0, 255, (3, 16, 16), np.uint8)])
def test_scalars_and_images_are_observations(space):
    policy = make("ppo", space)
    assert TWO.contains(policy.predict(space.sample()))
    assert policy.predict(np.stack([space.sample(), space.sample()])).shape == (2,)


def test_observations_may_be_dictionaries_lists_and_tensors():
    policy = make("ppo", spaces.Dict(state=VECTOR, speed=VECTOR), keys=["state"])
    one = {"state": np.zeros(3, np.float32), "speed": np.zeros(3, np.float32)}
    assert TWO.contains(policy.predict(one))
    assert policy.predict({key: np.stack([value] * 2) for key, value in one.items()}).shape == (2,)
    assert policy.predict({"state": [0.0, 0.0, 0.0], "speed": torch.zeros(3)}).shape == ()
