"""`policy.model.keys`: a policy sees the parts of an observation that it is told to, no others."""

import copy
import re

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.collect import Collector
from guerdon.config import compose
from guerdon.data import Batch
from guerdon.envs import make_vec
from guerdon.nn.spaces import used_space
from guerdon.policy import create_policy
from tests.policy.cases import assert_same_weights
from tests.reward.seeing import ID, SIZE

POLICIES = ("ppo", "a2c", "sac", "td3", "ddpg", "dqn")
VECTOR = spaces.Box(-1, 1, (3,), np.float32)
PICTURE = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
PARTS = spaces.Dict({"state": VECTOR, "wrist": PICTURE, "other": VECTOR})


# --- spaces


def test_one_part_stands_for_itself_and_several_are_a_dict():
    assert used_space(PARTS, None) is PARTS
    assert used_space(PARTS, ["state"]) == VECTOR
    assert used_space(PARTS, ["wrist", "state"]) == spaces.Dict({"wrist": PICTURE, "state": VECTOR})


@pytest.mark.parametrize(
    ("space", "keys", "sentence"),
    [
        (PARTS, ["stat"], "is ['stat'], but observations have the parts other, state, wrist: "),
        (PARTS, [], "is [], but observations have the parts other, state, wrist: choose one or "),
        (VECTOR, ["state"], "is ['state'], but observations have no parts (Box(-1.0, 1.0, (3,), "),
    ],
)
def test_parts_that_are_not_there_are_named(space, keys, sentence):
    sentence = re.escape(f"'policy.model.keys' {sentence}")
    with pytest.raises(ValueError, match=sentence):
        used_space(space, keys)
    with pytest.raises(ValueError, match=sentence):
        create_policy({"type": "ppo", "model": {"keys": keys}}, space, spaces.Discrete(2))


# --- policies


def made(name, keys, **model):
    env = make_vec(ID, 3, kwargs={"continuous": name != "dqn"})
    config = {"type": name, "model": {"hidden": [8], "keys": keys, **model}}
    policy = create_policy(config, env.observation_space, env.action_space, seed=1)
    return policy, env


def filled(policy, env):
    buffer = policy.make_buffer(300, 3, 5)
    Collector(policy, env, buffer, seed=5).collect(n_step=60)
    return buffer


def transitions(buffer):
    batch, _ = buffer.rollout()
    return batch[batch.mask]


@pytest.mark.parametrize("name", POLICIES)
def test_its_networks_are_made_for_what_it_sees(name):
    policy, _ = made(name, ["state"])
    assert policy.observation_space == spaces.Box(0, 1, (1,), np.float32)
    assert not any(parameter.dim() == 4 for parameter in policy.parameters())
    whole, _ = made(name, None)
    assert any(parameter.dim() == 4 for parameter in whole.parameters()), "pictures are convolved"


@pytest.mark.parametrize("name", POLICIES)
def test_it_acts_and_learns_alike_whatever_the_other_parts_show(name):
    (policy, env), (other, _), (actor, _) = (
        made(name, ["state"], normalize_obs=True) for _ in range(3)
    )
    buffer = filled(actor, env)
    scrambled = copy.deepcopy(buffer)
    noise = np.random.default_rng(0)
    finals = getattr(scrambled, "_finals", {})  # a replay buffer has them in a table of their own
    for path, column in [*scrambled._columns.items(), *finals.items()]:
        if path[-1] == "base_camera":
            column[:] = noise.integers(0, 256, column.shape, np.uint8)
    one, two = transitions(buffer), transitions(scrambled)
    assert (one.obs.base_camera != two.obs.base_camera).any()
    assert (one.obs_next.base_camera != two.obs_next.base_camera).any((1, 2, 3)).all()
    for _ in range(3):
        policy.update(16, buffer)
        other.update(16, scrambled)
    assert_same_weights(policy, other)
    policy.eval()
    with torch.no_grad():
        acts = [policy(Batch(obs=rows.obs)).act for rows in (one, two)]
    np.testing.assert_array_equal(*acts)


@pytest.mark.parametrize("name", ["ppo", "sac", "dqn"])
def test_what_it_sees_matters(name):
    for keys in (["state"], ["base_camera"], ["state", "base_camera"]):
        policy, env = made(name, keys)
        policy.update(16, filled(policy, env))
        policy.eval()
        network = policy.actor if hasattr(policy, "actor") else policy.model
        obs = transitions(filled(policy, env)).obs
        with torch.no_grad():
            before = network(policy.observation(obs))
            for key in ("state", "base_camera"):
                changed = obs.replace(**{key: obs[key][::-1].copy()})
                after = network(policy.observation(changed))
                differs = any(not torch.equal(before[name], after[name]) for name in before)
                assert differs == (key in keys), (keys, key)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_how_likely_actions_are_does_not_depend_on_other_parts(name):
    policy, env = made(name, ["state"])
    rows = transitions(filled(policy, env))
    act = torch.as_tensor(rows.act)
    one = policy.log_prob(rows.obs, act)
    dark = rows.obs.replace(base_camera=np.zeros_like(rows.obs.base_camera))
    assert torch.equal(one, policy.log_prob(dark, act))


def test_normalisers_see_what_the_policy_sees():
    policy, env = made("ppo", ["state"], normalize_obs=True)
    rows = transitions(filled(policy, env))
    policy.normalize_by(rows.obs)
    normalizer = next(m.normalizer for m in policy.modules() if hasattr(m, "normalizer"))
    np.testing.assert_allclose(normalizer.mean.numpy(), rows.obs.state.mean(0), atol=1e-2)


def test_keys_are_an_option_of_the_command_line():
    config = compose("reach_ppo", ["policy.model.keys=[state,base_camera]"])
    assert config.policy["model"]["keys"] == ["state", "base_camera"]
    assert compose("reach_ppo", ["policy.model.keys=null"]).policy["model"]["keys"] is None
