"""Environment managers: actions and results by the number of the environment."""

import gymnasium
import numpy as np
import pytest
import torch

from guerdon.compat.app_zoo.classic_control.cartpole.envs import CartPoleEnv
from guerdon.compat.nervex.gym_adapter import AsGymnasium
from guerdon.compat.nervex.worker import (
    BaseEnvManager,
    SubprocessEnvManager,
    SyncSubprocessEnvManager,
)
from tests.compat.nervex.worker.walking import Walk

MANAGERS = [BaseEnvManager, SubprocessEnvManager, SyncSubprocessEnvManager]


def make(kind, lengths=(2, 3), **options):
    cfg = [{"length": length} for length in lengths]
    return kind(env_fn=Walk, env_cfg=cfg, env_num=len(lengths), **options)


@pytest.mark.parametrize("kind", MANAGERS)
def test_every_environment_is_stepped_by_number(kind):
    manager = make(kind, episode_num=2)
    assert manager.env_info().agent_num == 1
    manager.seed(10)
    manager.launch()
    assert {i: obs.tolist() for i, obs in manager.next_obs.items()} == {0: [10.0], 1: [11.0]}
    found = manager.step({1: torch.tensor([0.5])})
    assert found.keys() == {1}
    timestep = found[1]
    assert torch.equal(timestep.obs, torch.tensor([11.5]))
    assert torch.equal(timestep.reward, torch.tensor([0.5]))
    assert (timestep.done, timestep.info["n"]) == (False, 1)
    assert manager.next_obs[0].tolist() == [10.0]
    episodes = {0: 0, 1: 0}
    while not manager.done:
        for i, step in manager.step({i: torch.ones(1) for i in manager.next_obs}).items():
            episodes[i] += step.done
            if step.done and episodes[i] < 2:
                assert manager.next_obs[i].tolist() == [10.0 + i]  # of the next episode
    assert episodes == {0: 2, 1: 2}
    assert manager.next_obs == {}
    manager.reset()
    assert manager.next_obs.keys() == {0, 1}
    manager.close()


def test_some_do_not_wait_for_all():
    manager = make(SubprocessEnvManager, (9, 9, 9), manager_cfg={"wait_num": 1})
    manager.launch()
    seen = set()
    for _ in range(200):
        ready = manager.next_obs
        found = manager.step({i: torch.zeros(1) for i in ready})
        assert found
        seen |= found.keys()
    manager.close()
    assert seen == {0, 1, 2}


def test_managers_start_and_stop():
    manager = make(BaseEnvManager)
    with pytest.raises(RuntimeError, match=r"not running: launch\(\) them first"):
        manager.step({})
    manager.launch()
    with pytest.raises(RuntimeError, match=r"close\(\) them first"):
        manager.launch()
    for _ in range(2):
        manager.close()
    manager.launch()
    manager.close()
    with pytest.raises(ValueError, match="there are 1 settings for 2 environments"):
        BaseEnvManager(Walk, [{}], 2)
    with pytest.raises(ValueError, match="there are 3 seeds for 2 environments"):
        manager.seed([1, 2, 3])


def test_gymnasium_environments():
    def cart_pole(cfg):
        return gymnasium.make(cfg["id"])

    firsts = []
    for seed in (1, 1, [5, 6]):
        manager = BaseEnvManager(cart_pole, [{"id": "CartPole-v1"}] * 2, 2)
        manager.seed(seed)
        manager.launch()
        firsts.append(torch.stack(list(manager.next_obs.values())))
        found = manager.step({0: torch.tensor([1])})
        assert found[0].obs.shape == (4,)
        manager.close()
    assert torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[0], firsts[2])


# --- environments in both forms


def test_cart_pole():
    env = CartPoleEnv(cfg={})
    info = env.info()
    assert (info.agent_num, info.obs_space.shape, info.act_space.shape) == (1, 4, 2)
    assert (info.act_space.value["min"], info.act_space.value["max"]) == (0, 2)
    env.seed(3)
    first = env.reset()
    env.seed(3)
    assert env.reset().tolist() == first.tolist()
    assert env.reset().tolist() != first.tolist()
    total = 0.0
    for number in range(500):
        timestep = env.step(np.array([number % 2]))
        assert (timestep.obs.dtype, timestep.reward.shape) == (np.float32, (1,))
        total += timestep.reward.item()
        if timestep.done:
            break
    assert timestep.info["final_eval_reward"] == total == number + 1
    env.close()


def test_an_environment_of_gymnasium_again():
    env = AsGymnasium(CartPoleEnv())
    assert env.observation_space.shape == (4,)
    assert env.action_space == gymnasium.spaces.Discrete(2)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert env.reset(seed=0)[0].tolist() == obs.tolist()
    _, reward, terminated, truncated, _ = env.step(0)
    assert (reward, terminated, truncated) == (1.0, False, False)
    env.close()


def test_a_time_limit_is_no_termination():
    class Short(CartPoleEnv):
        options = {"max_episode_steps": 2}  # noqa: RUF012

    env = AsGymnasium(Short())
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(2)]
    assert ends == [(False, False), (False, True)]
    env.close()


def test_spaces_of_elements():
    env = AsGymnasium(Walk({"length": 3}))
    assert env.action_space == gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    assert env.observation_space.shape == (1,)
