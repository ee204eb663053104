"""The named environments that come with guerdon, and those of MiniGrid."""

import pytest

from guerdon.config import compose
from guerdon.config.registry import registry_of
from guerdon.training.parts import make_env


@pytest.mark.parametrize(
    ("option", "policy", "env_id"),
    [
        ("cartpole_fixed", "ppo", "guerdon/CartPoleFixed-v0"),
        ("deepsea", "ppo", "guerdon/DeepSea-v0"),
        ("bitflip", "dqn", "guerdon/BitFlip-v0"),
        ("reach", "ppo", "guerdon/Reach-v0"),
        ("reach_loophole", "ppo", "guerdon/ReachLoophole-v0"),
        ("push", "ppo", "guerdon/Push-v0"),
        ("minigrid_empty", "ppo", "MiniGrid-Empty-8x8-v0"),
        ("minigrid_doorkey", "ppo", "MiniGrid-DoorKey-8x8-v0"),
    ],
)
def test_a_named_environment_composes_and_a_policy_can_read_it(option, policy, env_id):
    config = compose(None, [f"env={option}", f"policy={policy}", "run.max_steps=2500"])
    assert (config.env.id, config.run.max_steps) == (env_id, 2500)
    assert config.run.name == f"{option}_{policy}"
    with make_env(config.env) as env:
        assert env.n_envs == config.env.n_envs
        make = registry_of("policy").get(policy)
        make(config.policy, env.observation_space, env.action_space)
