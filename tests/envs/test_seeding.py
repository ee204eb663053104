"""Seeds reach every environment, whatever it runs in."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from guerdon.envs import Identity, VectorEnv, make_vec
from guerdon.envs.vector import to_seed

ENV_ID = "guerdon/Target-v0"


def streams(env: VectorEnv, seed: int, n_steps: int = 25) -> np.ndarray:
    """Observations to act on, [steps + 1, environments], with actions from the action space."""
    firsts = env.reset(seed)
    seen = [[first] for first in firsts]
    ids = np.arange(env.n_envs)
    while min(map(len, seen)) <= n_steps:
        step = env.step(np.zeros((len(ids), 1), np.float32))
        ids = np.arange(env.n_envs) if step.env_ids is None else step.env_ids
        for k, i in enumerate(ids):
            seen[i].append(step.obs[k])
    return np.array([rows[: n_steps + 1] for rows in seen]).swapaxes(0, 1)


def test_the_same_seed_gives_the_same_streams_on_every_backend():
    with make_vec(ENV_ID, 3, backend="base") as env:
        expected = streams(env, 7)
        np.testing.assert_array_equal(streams(env, 7), expected)
        assert not np.array_equal(streams(env, 8), expected)
    for backend in ("subprocess", "async_subprocess"):
        with make_vec(ENV_ID, 3, backend=backend) as env:
            np.testing.assert_array_equal(streams(env, 7), expected)


def test_environments_of_one_vector_differ():
    with make_vec(ENV_ID, 4, backend="base") as env:
        firsts = env.reset(0)[:, 0]
    assert len(set(firsts.tolist())) == 4


def test_gymnasiums_own_vectors_give_each_environment_its_seed():
    firsts = []
    for mode in AutoresetMode:
        env = VectorEnv(SyncVectorEnv([lambda: Identity(64)] * 3, autoreset_mode=mode))
        firsts.append(env.reset(5))
    np.testing.assert_array_equal(firsts[0], firsts[1])
    np.testing.assert_array_equal(firsts[0], firsts[2])
    with make_vec("guerdon/Identity-v0", 3, backend="base", kwargs={"n_actions": 64}) as env:
        np.testing.assert_array_equal(env.reset(5), firsts[0])


@pytest.mark.parametrize("backend", ["native", "base", "subprocess"])
def test_actions_are_drawn_from_the_seed(backend):
    drawn = []
    with make_vec("CartPole-v1", 2, backend=backend) as env:
        for seed in (3, 3, 4):
            env.reset(seed)
            drawn.append([int(env.action_space.sample()) for _ in range(30)])
    assert drawn[0] == drawn[1] != drawn[2]
    with make_vec("CartPole-v1", 2) as env:
        env.reset(3)
        assert drawn[0] == [int(env.action_space.sample()) for _ in range(30)]


def test_the_native_vector_is_seeded():
    with make_vec("CartPole-v1", 4) as env:
        first = env.reset(1)
        assert len(np.unique(first)) == 16
        np.testing.assert_array_equal(env.reset(1), first)
        assert not np.array_equal(env.reset(2), first)


def test_without_a_seed_generators_run_on():
    for backend in ("base", "subprocess"):
        with make_vec(ENV_ID, 2, backend=backend) as env:
            env.reset(1)
            second = env.reset()
            env.reset(1)
            np.testing.assert_array_equal(env.reset(), second)
            assert not np.array_equal(env.reset(), second)


def test_seeds_fit_into_31_bits_and_differ():
    seeds = [to_seed(child) for child in np.random.SeedSequence(0).spawn(1000)]
    assert len(set(seeds)) == 1000
    assert max(seeds) < 2**31
    assert max(seeds) > 2**30
    assert seeds[0] != to_seed(np.random.SeedSequence(1).spawn(1)[0])
