"""CartPole with a fixed horizon, one by one and as a vector."""

import gymnasium
import numpy as np
import pytest

from guerdon.envs import CartPoleFixed, CartPoleFixedVector, make_vec
from tests.rounding import assert_close

ID = "guerdon/CartPoleFixed-v0"


def put(env, *state):
    env.state = np.array(state)


def test_it_pays_until_the_first_fall_and_goes_on():
    env = CartPoleFixed()
    env.reset(seed=0)
    put(env, 0.0, 0.0, 0.20, 0.4)  # 0.208 next, and the limit is 0.2095
    assert env.step(0)[1:4] == (1.0, False, False)
    put(env, 0.0, 0.0, 0.20, 0.5)
    obs, *rest = env.step(0)
    assert obs[2] == pytest.approx(0.21)
    assert rest == [0.0, False, False, {}]
    put(env, 0.0, 0.0, 0.0, 0.0)  # up again, but it has fallen
    assert env.step(0)[1:4] == (0.0, False, False)
    env.reset()
    assert env.step(0)[1] == 1.0


def test_a_cart_that_runs_away_has_fallen_too():
    env = CartPoleFixed()
    env.reset(seed=0)
    put(env, -2.39, -0.4, 0.0, 0.0)
    assert env.step(1)[1] == 1.0
    put(env, -2.39, -0.6, 0.0, 0.0)
    assert env.step(1)[1] == 0.0


def test_an_episode_has_500_steps_and_a_finite_state():
    env = gymnasium.make(ID)
    env.reset(seed=0)
    for t in range(1, 501):
        obs, _, terminated, truncated, _ = env.step(1)
        assert (terminated, truncated) == (False, t == 500)
        assert env.observation_space.contains(obs)
    assert np.isfinite(obs).all()
    assert obs[0] > 100  # nothing has stopped it


def test_up_to_the_fall_it_is_gymnasiums():
    theirs, ours = gymnasium.make("CartPole-v1"), gymnasium.make(ID)
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(theirs.reset(seed=1)[0], ours.reset(seed=1)[0])
    fallen = False
    while not fallen:
        action = generator.integers(2)
        expected, _, fallen, _, _ = theirs.step(action)
        obs, rew, *_ = ours.step(action)
        np.testing.assert_array_equal(obs, expected)
        assert rew == (not fallen)


def test_heavier_poles_and_gravity_move_as_the_equations_say():
    env = CartPoleFixed(pole_mass=1.0)
    env.reset(seed=0)
    put(env, 0.0, 0.0, 0.0, 0.0)
    obs = env.step(1)[0]
    # Upright and at rest: 10 N on 2 kg turn the pole by -5 / (1/2 (4/3 - 1/2)) = -12, and the
    # cart gains 5 + 12 / 4 = 8.
    assert obs[3] == pytest.approx(0.02 * -12)
    assert obs[1] == pytest.approx(0.02 * 8)
    falls = []
    for gravity in (9.8, 19.6):  # at an angle, with the force alike, gravity adds to the turn
        env = CartPoleFixed(gravity=gravity)
        env.reset(seed=0)
        put(env, 0.0, 0.0, 0.1, 0.0)
        falls.append(env.step(1)[0][3])
    cos = np.cos(0.1)
    inertia = 0.5 * (4 / 3 - 0.1 * cos**2 / 1.1)
    assert falls[1] - falls[0] == pytest.approx(0.02 * 9.8 * np.sin(0.1) / inertia)


def test_start_states_are_shifted_in_every_episode():
    start = [0.5, 0.0, -0.1, 1.0]
    env = CartPoleFixed(start=start)
    for seed in range(3):
        assert np.abs(env.reset(seed=seed)[0] - start).max() <= 0.0501
    vector = CartPoleFixedVector(2, 3, start=start)
    assert np.abs(vector.reset(seed=0)[0] - start).max() <= 0.0501
    starts = []
    for t in range(1, 9):
        obs, *_ = vector.step(np.ones(2, np.int64))
        if t % 4 == 0:  # the step after the end of an episode resets
            assert np.abs(obs - start).max() <= 0.0501
            assert_close(vector.state.T, obs)
            starts.append(obs)
    assert (starts[0] != starts[1]).all()


def test_dynamics_are_options_of_the_environment():
    kwargs = {"gravity": 15.0, "pole_mass": 0.5, "start": [0.0, 0.0, 0.1, 0.0]}
    env = make_vec(ID, 2, kwargs=kwargs)
    assert isinstance(env.env, CartPoleFixedVector)
    assert (env.env.gravity, env.env.masspole, env.env.total_mass) == (15.0, 0.5, 1.5)
    assert env.env.polemass_length == 0.25
    for bad in ({"pole_mass": 0.0}, {"gravity": -1.0}, {"start": [0.1]}):
        with pytest.raises(ValueError, match=r"must be above 0|start takes position"):
            CartPoleFixed(**bad)


def test_one_by_one_and_as_a_vector_it_is_the_same():
    changed = {"gravity": 12.0, "pole_mass": 0.3, "start": (0.0, 0.1, 0.0, 0.1)}
    vector = CartPoleFixedVector(5, **changed)
    vector.reset(seed=0)
    singles = [CartPoleFixed(**changed) for _ in range(5)]
    for i, env in enumerate(singles):
        env.reset()
        put(env, *vector.state[:, i])
    assert vector.single_observation_space == singles[0].observation_space
    returns = np.zeros(5)
    for action in np.random.default_rng(0).integers(2, size=(500, 5)):
        obs, rew, terminated, truncated, _ = vector.step(action)
        steps = [env.step(one) for env, one in zip(singles, action, strict=True)]
        assert_close(obs, [step[0] for step in steps], atol=1e-5)
        np.testing.assert_array_equal(rew, [step[1] for step in steps])
        assert not terminated.any()
        returns += rew
    assert truncated.all()
    assert len(set(returns)) > 1
    assert returns.max() < 200


def test_a_new_episode_of_one_environment_is_paid_again():
    env = make_vec(ID, 3, max_episode_steps=30)
    assert isinstance(env.env, CartPoleFixedVector)
    obs = env.reset(0)
    env.env.steps[0] = 10  # so that it ends before the others
    rows = [[] for _ in range(3)]
    for _ in range(80):
        step = env.step(np.ones(3, np.int64))
        for i, row in enumerate(rows):
            if step.dummy is not None and step.dummy[i]:
                assert step.rew[i] == 0
                assert np.abs(step.obs[i]).max() <= 0.05
                continue
            assert step.obs_next[i, 0] == pytest.approx(obs[i, 0] + 0.02 * obs[i, 1], abs=1e-5)
            row.append((step.rew[i], step.truncated[i]))
        assert not step.terminated.any()
        obs = step.obs
    assert [[t for t, one in enumerate(row, 1) if one[1]] for row in rows] == [
        [20, 50],
        [30, 60],
        [30, 60],
    ]
    for row, starts in zip(rows, [(0, 20, 50), (0, 30, 60), (0, 30, 60)], strict=True):
        for start, end in zip(starts, (*starts[1:], None), strict=True):
            paid = [float(one[0]) for one in row[start:end]]
            n_up = int(sum(paid))
            assert 6 < n_up < 11  # a constant push fells it in about nine steps
            assert paid == [1.0] * n_up + [0.0] * (len(paid) - n_up)


def test_a_seed_decides_and_a_reset_puts_all_up():
    env = make_vec(ID, 4)
    first = env.reset(7)
    assert len(np.unique(first)) == 16
    for _ in range(20):
        step = env.step(np.zeros(4, np.int64))
    assert not step.rew.any()
    np.testing.assert_array_equal(env.reset(7), first)
    assert env.step(np.zeros(4, np.int64)).rew.all()
    assert not np.array_equal(env.reset(8), first)


def test_a_cart_far_away_is_drawn_beside_the_picture():
    for env in (CartPoleFixed("rgb_array"), CartPoleFixedVector(2, render_mode="rgb_array")):
        env.reset(seed=0)
        before = np.asarray(env.render())
        env.state[0] = -600.0
        frame = np.asarray(env.render())
        assert frame.shape[-3:] == (400, 600, 3)
        assert (before == 0).any(-1).sum() > (frame == 0).any(-1).sum() > 0  # the track is left
        assert (env.state[0] == -600).all()
        env.close()
