"""Hindsight: transitions tell by themselves which episode and step they are of.

The achieved goal of a row's next observation is (episode, step + 1); desired goals are (-1, -1).
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.data import Batch, PrioritizedReplayBuffer, ReplayBuffer
from guerdon.envs import make_vec
from guerdon.reward import Setting, create_reward_model, make_reward
from guerdon.training.run import train
from tests.training.running import assert_same_run

GOAL = spaces.Box(-np.inf, np.inf, (2,), np.float32)
SPACE = spaces.Dict({"observation": GOAL, "achieved_goal": GOAL, "desired_goal": GOAL})
STRATEGIES = ["future", "final", "episode"]
UNWANTED = np.array([-1.0, -1.0], np.float32)


class Judge:
    """An environment, as far as goals go: near is worth 0, all else -1, and there it ends."""

    def compute_reward(self, achieved, desired, info):
        assert info == {}
        return -(achieved != desired).any(-1).astype(np.float64)

    def compute_terminated(self, achieved, desired, info):
        assert info == {}
        return (achieved == desired).all(-1)


def rewards_of_ten(achieved, _desired, _info):
    return np.full(len(achieved), 10.0)


def setting(example=Judge, space=SPACE, **options):
    return Setting(space, spaces.Discrete(2), on_policy=False, example=example, **options)


def make(example=Judge, seed=0, **options):
    return create_reward_model({"type": "her", **options}, setting(example, seed=seed))


def observation(episodes, steps):
    here = np.stack([episodes, steps], -1).astype(np.float32)
    return {
        "observation": here,
        "achieved_goal": here,
        "desired_goal": np.broadcast_to(UNWANTED, here.shape).copy(),
    }


class World:
    """Environments that write into a buffer, and a plain list of what it holds."""

    def __init__(self, slots, n_envs, kind=ReplayBuffer, storage="memory"):
        self.buffer = kind(slots * n_envs, n_envs=n_envs, seed=0, storage=storage)
        self.slots = slots
        self.episodes = np.arange(n_envs)
        self.steps = np.zeros(n_envs, int)
        self.held = [[] for _ in range(n_envs)]  # (episode, step) by environment, oldest first

    def step(self, ends, terminated=True):
        ends = np.asarray(ends, bool)
        self.buffer.add(
            env_ids=np.arange(len(ends)),
            obs=observation(self.episodes, self.steps),
            act=np.zeros(len(ends), int),
            rew=np.full(len(ends), -1.0),
            terminated=ends & terminated,
            truncated=ends & (not terminated),
            obs_next=observation(self.episodes, self.steps + 1),
        )
        for env, held in enumerate(self.held):
            held.append((int(self.episodes[env]), int(self.steps[env])))
            del held[: -self.slots]
        self.steps = np.where(ends, 0, self.steps + 1)
        self.episodes = np.where(ends, self.episodes + len(ends), self.episodes)

    def cut(self):
        self.buffer.cut()
        self.episodes, self.steps = self.episodes + len(self.episodes), np.zeros_like(self.steps)

    def allowed(self, episode, step, strategy):
        """The goals that a transition may get."""
        held = [at for env in self.held for at, of in ((s, e) for e, s in env) if of == episode]
        rows = {
            "future": [s for s in held if s >= step],
            "final": [max(held)],
            "episode": held,
        }[strategy]
        return {(episode, s + 1) for s in rows}


def pairs(goals):
    return [tuple(int(x) for x in goal) for goal in np.asarray(goals).reshape(-1, 2)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=60)
@given(
    slots=st.integers(1, 7),
    n_envs=st.integers(1, 3),
    length=st.integers(1, 4),
    steps=st.lists(
        st.one_of(st.none(), st.lists(st.booleans(), min_size=3, max_size=3)),
        min_size=1,
        max_size=30,
    ),
    seed=st.integers(0, 99),
)
def test_every_goal_comes_from_where_the_strategy_says(
    strategy, slots, n_envs, length, steps, seed
):
    world = World(slots, n_envs)
    world.step(np.zeros(n_envs))
    for ends in steps:
        if ends is None:
            world.cut()
        else:
            world.step(ends[:n_envs])
    model = make(seed=seed, strategy=strategy, ratio=1.0)
    data, rows = world.buffer.sample(20, length)
    relabelled = model.apply(data, world.buffer, rows)
    starts = data.obs.observation if length == 1 else data.obs.observation[0]
    goals = relabelled.obs.desired_goal
    one = goals if length == 1 else goals[0]
    for (episode, step), goal in zip(pairs(starts), pairs(one), strict=True):
        assert goal in world.allowed(episode, step, strategy)
    np.testing.assert_array_equal(goals, np.broadcast_to(one, goals.shape))
    np.testing.assert_array_equal(relabelled.obs_next.desired_goal, goals)


def line(n_rows=5, **options):
    """One episode of five steps, which runs on."""
    world = World(10, 1, **options)
    for _ in range(n_rows):
        world.step([False])
    return world.buffer


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("future", {3, 4, 5}), ("final", {5}), ("episode", {1, 2, 3, 4, 5})],
)
def test_every_goal_that_the_strategy_allows_is_drawn(strategy, expected):
    buffer, model = line(), make(strategy=strategy, ratio=1.0)
    rows = np.full(300, 2)
    steps = model.apply(buffer[rows], buffer, rows).obs.desired_goal[:, 1]
    values, counts = np.unique(steps, return_counts=True)
    assert set(values.astype(int)) == expected
    assert counts.min() > 0.6 * 300 / len(expected)


def test_reward_and_end_are_those_of_the_new_goal():
    buffer, model = line(), make(strategy="final", ratio=1.0)
    rows = np.arange(5)
    relabelled = model.apply(buffer[rows], buffer, rows)
    assert relabelled.goal_reward.tolist() == [-1.0, -1.0, -1.0, -1.0, 0.0]
    assert relabelled.terminated.tolist() == [False, False, False, False, True]
    assert relabelled.done.tolist() == [False, False, False, False, True]
    assert model.estimate(relabelled).rew.tolist() == [-1.0, -1.0, -1.0, -1.0, 0.0]


def test_an_end_by_the_old_goal_is_none_for_a_new_one():
    world = World(10, 1)
    world.step([False])
    world.step([True])
    world.step([False])
    world.step([True], terminated=False)
    model, rows = make(ratio=1.0), np.array([0, 1, 2, 3])
    model._draw = lambda rows, buffer: np.array([0, 0, 2, 2])  # noqa: ARG005
    relabelled = model.apply(world.buffer[rows], world.buffer, rows)
    assert relabelled.terminated.tolist() == [True, False, True, False]
    assert relabelled.done.tolist() == [True, False, True, True]  # the time limit stays


def test_a_segment_ends_where_its_goal_is_reached():
    buffer, model = line(), make(strategy="final", ratio=1.0)
    model._draw = lambda rows, buffer: np.array([1])  # noqa: ARG005
    rows = np.array([[0], [1], [2], [3]])
    data = buffer[rows].replace(mask=np.array([[True], [True], [True], [False]]))
    relabelled = model.apply(data, buffer, rows)
    assert relabelled.goal_reward[:, 0].tolist() == [-1.0, 0.0, -1.0, -1.0]
    assert relabelled.terminated[:, 0].tolist() == [False, True, False, False]
    assert relabelled.mask[:, 0].tolist() == [True, True, False, False]


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("length", [1, 3])
def test_the_ratio_is_the_share_of_relabelled_samples(ratio, length):
    buffer, model = line(), make(ratio=ratio)
    data, rows = buffer.sample(2000, length)
    relabelled = model.apply(data, buffer, rows)
    goals = relabelled.obs.desired_goal.reshape(length, 2000, 2)
    other = (goals != UNWANTED).any(-1)
    assert (other == other[0]).all()
    assert other.mean() == pytest.approx(ratio, abs=0.04)
    kept = ~other[0]
    rew = model.score(relabelled).reshape(length, 2000)[:, kept]
    np.testing.assert_array_equal(rew, data.rew.reshape(length, 2000)[:, kept])
    np.testing.assert_array_equal(relabelled.rew, data.rew)


def test_what_was_read_stays_as_it_is():
    buffer, model = line(), make(ratio=1.0)
    data, rows = buffer.sample(8, 3)
    before = copy.deepcopy(data)
    model.apply(data, buffer, rows)
    assert data == before


def test_tensors_stay_tensors():
    buffer, model = line(storage="cpu"), make(strategy="final", ratio=1.0)
    rows = np.array([[3], [4]])
    data = buffer[rows].replace(mask=torch.ones(2, 1, dtype=torch.bool))
    relabelled = model.apply(data, buffer, rows)
    assert isinstance(relabelled.obs.desired_goal, torch.Tensor)
    assert relabelled.obs.desired_goal.tolist() == [[[0.0, 5.0]]] * 2
    assert relabelled.goal_reward.tolist() == [[-1.0], [0.0]]
    assert relabelled.terminated.tolist() == [[False], [True]]


def test_functions_for_single_goals_are_asked_one_by_one():
    class Single:
        def compute_reward(self, achieved, desired, _info):
            return float(np.linalg.norm(achieved - desired) < 0.5)

        def compute_terminated(self, *_goals):
            return False

    buffer, model = line(), make(Single, strategy="final", ratio=1.0)
    rows = np.arange(5)
    relabelled = model.apply(buffer[rows], buffer, rows)
    assert relabelled.goal_reward.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert not relabelled.terminated.any()


@pytest.mark.parametrize("given", [f"{__name__}:rewards_of_ten", rewards_of_ten])
def test_a_function_of_ones_own_says_what_goals_pay(given):
    buffer, model = line(), make(object, reward_function=given, ratio=1.0)
    data, rows = buffer.sample(4)
    relabelled = model.apply(data, buffer, rows)
    assert relabelled.goal_reward.tolist() == [10.0] * 4
    assert relabelled.terminated.tolist() == data.terminated.tolist()


def test_without_a_function_there_is_an_error_that_names_the_option():
    for example in (object, None):
        with pytest.raises(ValueError, match=r"compute_reward.*'reward_function'"):
            make(example)


@pytest.mark.parametrize(
    "space",
    [
        GOAL,
        spaces.Dict({"observation": GOAL, "achieved_goal": GOAL}),
        spaces.Dict({"achieved_goal": GOAL, "desired_goal": spaces.Box(0, 1, (3,))}),
    ],
    ids=["no parts", "no desired goal", "goals of two shapes"],
)
def test_observations_without_goals_are_refused(space):
    with pytest.raises(ValueError, match="'achieved_goal' and 'desired_goal' of one shape"):
        make_reward({"type": "her"}, setting(space=space))


def test_a_policy_without_a_buffer_is_refused():
    with pytest.raises(ValueError, match="'her' needs a policy with a replay buffer"):
        make_reward({"type": "her"}, replace(setting(), on_policy=True))


def test_the_same_seed_draws_the_same_goals_and_a_state_goes_on_exactly():
    buffer = line()
    data, rows = buffer.sample(50)
    one, other = make(), make()
    first = one.apply(data, buffer, rows)
    assert other.apply(data, buffer, rows) == first
    late = make()
    late.load_training_state(one.training_state())
    second = one.apply(data, buffer, rows)
    assert late.apply(data, buffer, rows) == second
    assert second != first


def test_reading_relabels_before_it_resolves_rewards():
    options = {"ratio": 1.0, "strategy": "final", "scale": 2.0}
    reward = make_reward({"type": "her", **options}, setting())
    buffer = line(kind=PrioritizedReplayBuffer)
    view = reward.view(buffer, torch.device("cpu"))
    batch, rows = view.sample(30)
    expected = np.where(rows == 4, 0.0, -1.0)
    assert batch.rew.tolist() == (2.0 * expected).tolist()
    assert batch.rew_env.tolist() == [-1.0] * 30
    assert batch.terminated.tolist() == (rows == 4).tolist()
    assert view.rew[4] == 0.0
    assert reward.collects == ()


@pytest.mark.parametrize("backend", ["native", "base", "subprocess"])
def test_the_functions_are_found_wherever_environments_run(backend):
    with make_vec("guerdon/BitFlip-v0", 2, backend=backend, kwargs={"n_bits": 3}) as env:
        model = create_reward_model({"type": "her"}, setting(env.example, env.observation_space))
        env.reset(0)
        goals = np.array([[0, 0, 1], [1, 1, 1]], np.float32)
        assert model._reward(goals, goals[:1], {}).tolist() == [0.0, -1.0]
        assert model._terminated(goals, goals[:1], {}).tolist() == [True, False]


def test_other_transitions_keep_their_reward():
    data = Batch(obs=np.zeros((2, 1)), act=np.zeros(2, int), rew=np.array([1.0, 2.0]))
    assert make().estimate(data).rew.tolist() == [1.0, 2.0]
    items = [{"obs": [0.0], "action": 0, "reward": 3.0}]
    assert make().estimate(items) == [{"obs": [0.0], "action": 0, "reward": 3.0}]


def test_a_run_that_stops_and_goes_on_is_one_that_never_stopped(tmp_path):
    config = {
        "env": {"id": "guerdon/BitFlip-v0", "n_envs": 3, "kwargs": {"n_bits": 4}},
        "policy": {"type": "dqn", "n_step": 3, "prioritized": True, "beta": 1.0},
        "reward": {"type": "her"},
        "collect": {"n_step": 8, "warmup_steps": 16, "buffer_size": 60},
        "learn": {"batch_size": 16},
        "eval": {"every": 48, "episodes": 2},
        "run": {"max_steps": 96, "checkpoint_every": 48, "log_every": 48},
    }
    train(config, f"run.dir={tmp_path / 'whole'}", display="none")
    train(config, f"run.dir={tmp_path / 'half'}", "run.max_steps=48", display="none")
    train(None, "run.max_steps=96", resume=tmp_path / "half", display="none")
    assert_same_run(tmp_path / "whole", tmp_path / "half")
