"""Every policy with a network that reads ``x["obs"]``, as the documents' readers write it."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from guerdon.collect import Collector
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from tests.envs.looking import Parted
from tests.policy.cases import CASES, N_ENVS, collected, make_policy

NAMES = [
    "dqn", "a2c", "a2c_continuous", "ppo", "ppo_continuous", "ddpg", "td3", "sac", "sac_discrete",
]  # fmt: skip


class Reads(nn.Module):
    """Two halves under the names that everybody gives them."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.discrete = isinstance(action_space, spaces.Discrete)
        n_actions = int(action_space.n) if self.discrete else action_space.shape[0]
        self.actor = nn.Linear(observation_space.shape[0], n_actions)
        self.critic = nn.Linear(observation_space.shape[0], 1)
        self.log_std = nn.Parameter(torch.zeros(n_actions))

    def forward(self, x):
        output = self.actor(x["obs"])
        value = self.critic(x["obs"]).squeeze(-1)
        if self.discrete:
            return {"logit": output, "value": value}
        log_std = self.log_std.expand_as(output)
        return {"mu": output, "log_std": log_std, "action": output.tanh(), "value": value}


@pytest.mark.parametrize("name", NAMES)
def test_a_network_that_reads_a_mapping_learns(name):
    case = CASES[name]
    policy = make_policy(case, model=Reads)
    network = (policy.actor if hasattr(policy, "actor") else policy.model).model
    assert type(network) is Reads
    buffer = collected(policy, case)
    before = copy.deepcopy(network.actor.weight)
    for _ in range(2):  # td3's actor learns every other time
        policy.update(32, buffer)
    assert not torch.equal(network.actor.weight, before)


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sac_discrete"])
def test_a_network_may_give_a_tensor_where_one_is_all_that_is_needed(name):
    case = CASES[name]
    sizes = (4, 2) if case.env[0] == "CartPole-v1" else (3, 1)
    policy = make_policy(case, model=nn.Linear(*sizes))
    policy.update(32, collected(policy, case))


@pytest.mark.parametrize("name", ["a2c", "ppo", "ppo_continuous", "sac"])
def test_a_network_that_gives_too_little_is_refused_at_once(name):
    case = CASES[name]
    sizes = (4, 2) if case.env[0] == "CartPole-v1" else (3, 1)
    with pytest.raises(ValueError, match="the model Linear returns a Tensor, but has to return"):
        make_policy(case, model=nn.Linear(*sizes))


@pytest.mark.parametrize("name", ["dqn", "ppo"])
@pytest.mark.parametrize("own", [False, True])
def test_policies_learn_from_observations_in_parts(name, own):
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            number, inner = x["obs"]["0"], x["obs"]["1"]["a"]["0"]
            output = self.linear(torch.cat([number[:, None].float(), inner], -1))
            return {"logit": output[:, :2], "value": output[:, 2]}

    with make_vec(Parted, N_ENVS, max_episode_steps=9) as env:
        made = create_policy(
            {"type": name}, env.observation_space, env.action_space, model=Parts() if own else None
        )
        buffer = made.make_buffer(256, N_ENVS, 0)
        Collector(made, env, buffer, seed=0).collect(n_step=60)
    metrics = made.update(16, buffer)
    assert all(np.isfinite(float(value)) for value in metrics.values())
