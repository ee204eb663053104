"""Tables, one by one and as vectors: what happens on them, and what their pictures show."""

import time
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.envs import Push, PushVector, Reach, ReachVector, make_vec
from guerdon.envs.ids import registered_limit
from guerdon.envs.raster import pixel_of
from guerdon.envs.tabletop import CORNER
from tests.rounding import assert_close

IDS = ["guerdon/Reach-v0", "guerdon/Push-v0", "guerdon/ReachLoophole-v0"]
VECTORS = [ReachVector, PushVector]
SEEDS = st.integers(0, 2**31)
RADIUS = {ReachVector: 0.15, PushVector: 0.2}


def shown(pictures, positions):
    """The pixels at positions of a row each, as signed numbers."""
    column, row = np.floor(pixel_of(positions)).astype(int).T
    return pictures[np.arange(len(pictures)), row, column].astype(int)


def is_green(pixels):
    """What only goals are."""
    return pixels[..., 1] - pixels[..., [0, 2]].max(-1) >= 60


def is_dark(pixels):
    """What only effectors are."""
    return pixels.max(-1) <= 40


def is_orange(pixels):
    """What only cubes are."""
    return (pixels[..., 0] >= 200) & (pixels[..., 1] >= 100) & (pixels[..., 2] <= 60)


def target(env):
    """What has to be at the goal."""
    return env.cube if isinstance(env, PushVector) else env.effector


def walk(env, n_steps, seed):
    """Steps with actions that last for a while."""
    generator = np.random.default_rng(seed)
    actions = np.zeros((env.num_envs, 2), np.float32)
    for t in range(n_steps):
        if t % 5 == 0:
            actions = generator.uniform(-1.5, 1.5, (env.num_envs, 2)).astype(np.float32)
        yield env.step(actions)


def same(ours, theirs):
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            same(value, theirs[key])
    else:
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("obs", ["state", "image", "both"])
def test_they_keep_gymnasiums_rules(env_id, obs):
    env = gymnasium.make(env_id, obs=obs, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(observation space|spec)", UserWarning)
        check_env(env.unwrapped)
    env.reset()
    assert env.render().shape == (64, 64, 3)


@pytest.mark.parametrize(("vector", "size"), [(ReachVector, 6), (PushVector, 10)])
def test_what_is_observed_can_be_chosen(vector, size):
    seen = {}
    for obs in ("state", "image", "both"):
        env = vector(3, obs=obs)
        seen[obs], _ = env.reset(seed=1)
        assert env.observation_space.contains(seen[obs])
    same(seen["both"], {"state": seen["state"], "base_camera": seen["image"]})
    assert seen["state"].shape == (3, size)
    assert seen["image"].shape == (3, 64, 64, 3)
    assert isinstance(env.single_observation_space, spaces.Dict)
    assert env.single_action_space == spaces.Box(-1, 1, (2,))


def test_the_state_tells_positions_and_the_ways_between_them():
    reach, push = ReachVector(1, obs="state"), PushVector(1, obs="state")
    for env in (reach, push):
        env.reset(seed=0)
        env.effector[:], env.goal[:], env.cube[:] = (0.5, -0.25), (0.25, 0.5), (-0.5, 0.0)
    still = np.zeros((1, 2))
    assert reach.step(still)[0].tolist() == [[0.5, -0.25, 0.25, 0.5, -0.25, 0.75]]
    assert push.step(still)[0].tolist() == [
        [0.5, -0.25, -0.5, 0.0, 0.25, 0.5, -1.0, 0.25, 0.75, 0.5]
    ]


def test_an_action_moves_the_effector_by_a_tenth_and_not_off_the_table():
    env = ReachVector(3)
    env.reset(seed=0)
    env.effector[:] = [[0, 0], [0, 0], [0.95, -0.95]]
    env.step(np.array([[1, -0.5], [3, -7], [1, -1]], np.float32))
    assert_close(env.effector, [[0.1, -0.05], [0.1, -0.1], [1, -1]])


@pytest.mark.parametrize("vector", VECTORS)
@settings(max_examples=20)
@given(seed=SEEDS)
def test_nothing_leaves_the_table_and_success_is_being_near(vector, seed):
    env = vector(16, obs="state")
    obs, _ = env.reset(seed=seed)
    once = np.zeros(16, bool)
    for step in walk(env, 50, seed):
        obs, rew, terminated, _, info = step
        assert env.observation_space.contains(obs)
        assert max(np.abs(env.effector).max(), np.abs(env.cube).max()) <= 1
        near = np.hypot(*obs[:, -2:].T) <= RADIUS[vector]  # the last way is to the goal
        once |= near
        np.testing.assert_array_equal(info["success"], near)
        np.testing.assert_array_equal(info["success_once"], once)
        assert info["success"].dtype == info["success_once"].dtype == bool
        assert info["_success"].all()
        assert info["_success_once"].all()
        np.testing.assert_array_equal(rew, near)
        assert not terminated.any()


@pytest.mark.parametrize("vector", VECTORS)
def test_no_episode_begins_with_success_or_in_the_corner(vector):
    env = vector(5000, obs="state")
    env.reset(seed=0)
    way = np.hypot(*(target(env) - env.goal).T)
    assert 0.25 < way.min() < 0.27
    assert np.abs(env.effector).max() <= 0.6
    assert not env.step(np.zeros((5000, 2)))[4]["success"].any()


@pytest.mark.parametrize("vector", VECTORS)
@settings(max_examples=20)
@given(seed=SEEDS, distractors=st.integers(0, 6))
def test_the_first_picture_shows_everything_at_its_place(vector, seed, distractors):
    env = vector(32, obs="image", distractors=distractors)
    pictures, _ = env.reset(seed=seed)
    assert is_dark(shown(pictures, env.effector)).all()
    free = np.abs(env.effector - env.goal).max(1) > 0.16
    if vector is PushVector:
        assert is_orange(shown(pictures, env.cube)).all()
        free &= np.abs(env.cube - env.goal).max(1) > 0.14
    assert is_green(shown(pictures, env.goal)[free]).all()


@pytest.mark.parametrize("vector", VECTORS)
@settings(max_examples=15)
@given(seed=SEEDS)
def test_a_frame_shows_the_success_that_it_is_labelled_with(vector, seed):
    env = vector(16, obs="image")
    env.reset(seed=seed)
    # Put in half of the rows on a ring around the limit, where labels are hard.
    angle = np.random.default_rng(seed).uniform(0, 2 * np.pi, 16)
    ring = np.where(np.arange(16) % 2, 0.9, 1.1) * RADIUS[vector]
    env.effector[:] = (-1, -1)
    target(env)[:] = env.goal + ring[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    pictures, _, _, _, info = env.step(np.zeros((16, 2)))
    np.testing.assert_array_equal(info["success"], np.arange(16) % 2 == 1)
    looks = is_orange if vector is PushVector else is_dark
    assert looks(shown(pictures, target(env))).all()
    # The goal is drawn below: less of it is seen than where it is alone.
    whole = is_green(env._still.astype(int)).sum((1, 2))
    seen = is_green(pictures.astype(int)).sum((1, 2))
    assert (seen[info["success"]] < whole[info["success"]]).all()


def test_an_effector_at_the_goal_covers_most_of_it():
    env = ReachVector(64, obs="image")
    env.reset(seed=0)
    env.effector[:] = env.goal
    pictures = env.step(np.zeros((64, 2)))[0]
    share = is_green(pictures.astype(int)).sum((1, 2)) / is_green(env._still.astype(int)).sum(
        (1, 2)
    )
    assert share.max() < 0.5
    assert is_dark(shown(pictures, env.goal)).all()


@pytest.mark.parametrize("vector", VECTORS)
@settings(max_examples=20)
@given(seed=SEEDS)
def test_no_distractor_looks_like_a_goal_an_effector_or_a_cube(vector, seed):
    env = vector(8, obs="image", distractors=20)
    env.reset(seed=seed)
    env.effector[:], env.cube[:] = (-1, -1), (-0.7, -0.7)
    pictures = env.step(np.zeros((8, 2)))[0].astype(int)
    column, row = np.meshgrid(np.arange(64), np.arange(64))
    for looks, positions, size in (
        (is_green, env.goal, RADIUS[vector]),
        (is_dark, env.effector, 0.12),
        (is_orange, env.cube, 0.1 * np.sqrt(2)),
    ):
        at = pixel_of(positions)
        way = np.hypot(column + 0.5 - at[:, 0, None, None], row + 0.5 - at[:, 1, None, None])
        assert not looks(pictures)[way > size * 32 / 1.125 + 1].any()


def test_colours_goals_and_distractors_are_drawn_for_every_episode():
    env = ReachVector(64, obs="image")
    first, second = env.reset(seed=0)[0], env.reset()[0]
    for pictures in (first, second):
        assert len({picture.tobytes() for picture in pictures}) == 64
        assert len(np.unique(pictures[:, 0, 0], axis=0)) > 60  # tables
        assert len(np.unique(shown(pictures, env.effector), axis=0)) > 30
    assert not (first == second).all((1, 2, 3)).any()
    n_colours = [
        len(np.unique(picture.reshape(-1, 3), axis=0))
        for n in (0, 5)
        for picture in ReachVector(1, obs="image", distractors=n).reset(seed=0)[0]
    ]
    assert n_colours == [3, 8]


def test_a_push_moves_the_cube_along_one_axis():
    env = PushVector(4)
    env.reset(seed=0)
    env.goal[:] = (-0.6, -0.6)
    env.cube[:] = (0, 0)
    env.effector[:] = [[-0.25, 0.05], [0.1, 0.3], [-0.25, 0.3], [0.24, 0]]
    env.step(np.array([[1, 0], [0.5, -1], [0, -0.5], [0, 1]], np.float32))
    expected = [[0.07, 0], [0, -0.02], [0, 0], [0, 0]]  # 0.22 away from the effector, if touched
    assert_close(env.cube, expected)
    moved = [[-0.15, 0.05], [0.15, 0.2], [-0.25, 0.25], [0.24, 0.1]]
    assert_close(env.effector, moved)


def test_a_cube_at_its_limit_stops_the_effector_which_can_come_behind_it():
    env = PushVector(2)
    env.reset(seed=0)
    env.cube[:] = [[0.74, 0], [0.75, 0]]
    env.effector[:] = [[0.5, 0], [1, 0]]
    env.step(np.array([[1, 0], [0, 0]], np.float32))
    assert_close(env.cube, [[0.75, 0], [0.75, 0]])
    assert_close(env.effector, [[0.53, 0], [1, 0]])
    env.step(np.array([[-1, 0], [-1, 0]], np.float32))
    assert_close(env.cube, [[0.75, 0], [0.68, 0]])


@settings(max_examples=20)
@given(seed=SEEDS)
def test_effector_and_cube_never_overlap(seed):
    env = PushVector(32, obs="state")
    env.reset(seed=seed)
    moved = np.zeros(32, bool)
    before = env.cube.copy()
    for _ in walk(env, 50, seed):
        assert (np.abs(env.cube - env.effector).max(1) >= 0.22 - 1e-6).all()
        assert np.abs(env.cube).max() <= 0.75
        moved |= (env.cube != before).any(1)
    assert moved.any()


def test_a_dense_reward_takes_off_distances():
    reach, push = ReachVector(2, reward="dense"), PushVector(2, reward="dense")
    still, farthest = np.zeros((2, 2)), np.sqrt(8)
    for env in (reach, push):
        env.reset(seed=0)
        env.goal[:] = (0.5, 0)
        env.effector[:] = [[-0.5, 0], [0.4, 0]]
    assert reach.step(still)[1] == pytest.approx([-1 / farthest, 1 - 0.1 / farthest])
    push.cube[:] = [[0, 0], [0.62, 0]]
    # The effector belongs to the left of the first cube, and to the right of the second one.
    expected = [-(0.5 + 0.5 * 0.28) / (1.5 * farthest), 1 - (0.12 + 0.5 * 0.44) / (1.5 * farthest)]
    assert push.step(still)[1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("vector", VECTORS)
@settings(max_examples=10)
@given(seed=SEEDS)
def test_a_dense_reward_is_bounded(vector, seed):
    env = vector(16, obs="state", reward="dense")
    env.reset(seed=seed)
    for _, rew, _, _, info in walk(env, 50, seed):
        shaping = rew - info["success"]
        assert -1 <= shaping.min() <= shaping.max() <= 0


@pytest.mark.parametrize("env_id", IDS)
def test_episodes_have_50_steps_or_as_many_as_asked_for(env_id):
    assert registered_limit(env_id) == 50
    for backend in ("native", "base"):
        for limit in (None, 70):
            env = make_vec(
                env_id, 2, backend=backend, max_episode_steps=limit, kwargs={"obs": "state"}
            )
            env.reset(0)
            truncated = [env.step(np.zeros((2, 2))).truncated.all() for _ in range(71)]
            assert truncated.index(True) + 1 == (limit or 50)
    env = Reach(obs="state", max_episode_steps=2)
    env.reset(seed=0)
    assert [env.step(np.zeros(2))[3] for _ in range(2)] == [False, True]


def test_success_can_end_an_episode():
    for terminate in (False, True):
        env = ReachVector(2, terminate=terminate)
        env.reset(seed=0)
        env.effector[0] = env.goal[0]
        _, _, terminated, truncated, info = env.step(np.zeros((2, 2)))
        assert info["success"].tolist() == [True, False]
        assert terminated.tolist() == [terminate, False]
        assert not truncated.any()


@pytest.mark.parametrize(("single", "vector"), [(Reach, ReachVector), (Push, PushVector)])
def test_a_single_environment_is_a_vector_of_one(single, vector):
    one, many = single(), vector(1)
    assert one.observation_space == many.single_observation_space
    ours, theirs = one.reset(seed=3)[0], many.reset(seed=3)[0]
    same(ours, {key: part[0] for key, part in theirs.items()})
    for actions in np.random.default_rng(0).uniform(-1, 1, (60, 1, 2)).astype(np.float32):
        ours, theirs = one.step(actions[0]), many.step(actions)
        same(ours[0], {key: part[0] for key, part in theirs[0].items()})
        assert ours[1] == theirs[1][0]
        assert ours[4] == {key: theirs[4][key][0] for key in ("success", "success_once")}
        assert [type(value) for value in ours[4].values()] == [bool, bool]
    same(one.reset()[0], {key: part[0] for key, part in many.reset()[0].items()})


@pytest.mark.parametrize("vector", VECTORS)
def test_a_seed_decides_all_episodes_whatever_is_observed(vector):
    def episodes(seed, obs):
        env = vector(4, obs=obs)
        found = [env.reset(seed=seed)[0]]
        found += [step[0] for step in walk(env, 5, 0)]
        found += [env.reset()[0]]
        return [each["state"] if obs == "both" else each for each in found]

    same(episodes(1, "state"), episodes(1, "both"))
    same(episodes(1, "image"), episodes(1, "image"))
    assert not np.array_equal(episodes(1, "state"), episodes(2, "state"))


@pytest.mark.parametrize("vector", VECTORS)
def test_a_reset_of_some_rows_draws_for_those_alone(vector):
    env = vector(4)
    env.reset(seed=0)
    *_, last = walk(env, 7, 0)
    mask = np.array([False, True, False, True])
    drawn = vector(2)
    drawn.np_random.bit_generator.state = env.np_random.bit_generator.state
    obs, _ = env.reset(options={"reset_mask": mask})
    expected, _ = drawn.reset()
    for key, part in obs.items():
        same(part[~mask], last[0][key][~mask])
        same(part[mask], expected[key])


def test_rows_that_are_reset_count_steps_and_successes_anew():
    env = ReachVector(2, obs="state", max_episode_steps=3)
    env.reset(seed=0)
    env.effector[:] = env.goal
    still = np.zeros((2, 2))
    env.step(still)
    env.reset(options={"reset_mask": np.array([True, False])})
    told = [env.step(still) for _ in range(2)]
    assert [step[4]["success_once"].tolist() for step in told] == [[False, True]] * 2
    assert [step[3].tolist() for step in told] == [[False, False], [False, True]]


@pytest.mark.parametrize("vector", VECTORS)
def test_nothing_given_is_changed_later(vector):
    env = vector(4, terminate=True)
    given = [(env.reset(seed=0)[0],)]
    target(env)[:2] = env.goal[:2]
    given += [(*step[:4], step[4]["success"], step[4]["success_once"]) for step in walk(env, 3, 0)]
    kept = [tuple(_copied(part) for part in parts) for parts in given]
    env.reset(options={"reset_mask": np.array([True, True, False, False])})
    [*walk(env, 3, 1)]
    env.reset(seed=1)
    for parts, copies in zip(given, kept, strict=True):
        for part, copied in zip(parts, copies, strict=True):
            same(part, copied)
    assert given[1][4].any()
    given[0][0]["base_camera"][:] = 7  # nor does the environment look at what it gave
    same(env.reset(seed=0)[0], kept[0][0])


def _copied(obs):
    return {key: part.copy() for key, part in obs.items()} if isinstance(obs, dict) else obs.copy()


def test_the_loophole_covers_the_goal_from_the_corner_and_is_no_success():
    plain, loophole = (ReachVector(64, loophole=True) for _ in range(2))
    same(plain.reset(seed=0)[0], loophole.reset(seed=0)[0])
    plain._loophole = False
    inside = np.arange(64) % 2 == 0
    for env in (plain, loophole):
        env.effector[:] = np.where(inside[:, None], 0.9, (0.9, CORNER - 0.05))
    still = np.zeros((64, 2))
    (ours, *rest, info), (theirs, *expected, told) = loophole.step(still), plain.step(still)
    same(rest, expected)
    same(info, told)
    same(ours["state"], theirs["state"])
    assert not info["success"].any()
    changed = (ours["base_camera"] != theirs["base_camera"]).any((1, 2, 3))
    np.testing.assert_array_equal(changed, inside)
    pictures = ours["base_camera"][inside]
    assert is_dark(shown(pictures, loophole.effector[inside])).all()
    assert is_dark(shown(pictures, loophole.goal[inside])).all()
    # Around the goal it looks exactly as if the effector were there.
    plain.effector[:] = plain.goal
    true = plain.step(still)[0]["base_camera"][inside]
    column, row = np.floor(pixel_of(plain.goal[inside])).astype(int).T
    for picture, other, i, k in zip(pictures, true, row, column, strict=True):
        around = np.s_[i - 6 : i + 7, k - 6 : k + 7]
        same(picture[around], other[around])


def test_the_loophole_is_nearer_than_the_goal():
    env = ReachVector(2000, obs="state", loophole=True)
    env.reset(seed=0)
    assert env.effector.min() >= 0
    assert (env.goal.min(1) < -0.2).all()


def test_no_goal_can_be_reached_from_the_corner():
    env = ReachVector(5000, obs="state")
    env.reset(seed=0)
    way = np.maximum(CORNER - env.goal, 0)  # to the nearest place in the corner
    assert np.hypot(*way.T).min() > env.goal_radius - 1e-6
    assert env.goal.max(0).min() > 0.69  # beside it there are some


def test_the_loophole_has_an_id():
    for backend in ("native", "base"):
        env = make_vec("guerdon/ReachLoophole-v0", 2, backend=backend)
        batch = env.env if backend == "native" else env.example().unwrapped._batch
        assert batch._loophole
    assert not make_vec("guerdon/Reach-v0", 2).env._loophole


@pytest.mark.parametrize(
    ("vector", "least", "most"), [(ReachVector, 0.05, 0.2), (PushVector, 0.005, 0.03)]
)
def test_chance_succeeds_now_and_then(vector, least, most):
    env = vector(2000, obs="state")
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    corner = np.zeros(2000, bool)
    for actions in generator.standard_normal((50, 2000, 2)):
        obs, *_, info = env.step(actions)
        corner |= (obs[:, :2] > CORNER).all(1)
    assert least < info["success_once"].mean() < most
    assert corner.mean() > 0.01


@pytest.mark.parametrize("env_id", IDS)
def test_rendering_gives_the_picture_that_is_observed(env_id):
    for obs in ("both", "state"):
        env = gymnasium.make(env_id, obs=obs, render_mode="rgb_array")
        seen, _ = env.reset(seed=0)
        frames = [env.render()]
        assert env.metadata["render_fps"] == 10
        seen = [seen, env.step(np.ones(2, np.float32))[0]]
        frames.append(env.render())
        assert not np.array_equal(*frames)
        if obs == "both":
            same([each["base_camera"] for each in seen], frames)
    vector = make_vec(env_id, 3, backend="native", render_mode="rgb_array")
    same(vector.reset(0)["base_camera"], np.array(vector.render()))
    assert make_vec(env_id, 3).render() is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"obs": "images"}, "obs is 'images', but has to be one of state, image, both"),
        ({"reward": "sparse"}, "reward is 'sparse', but has to be one of success, dense"),
        ({"distractors": -1}, "distractors is -1, but has to be 0 or more"),
    ],
)
def test_wrong_arguments_are_named(kwargs, message):
    for single in (Reach, Push):
        with pytest.raises(ValueError, match=message):
            single(**kwargs)


def test_pictures_are_fast():
    """Far below what it does (benchmarks say that), so that a busy machine passes as well."""
    env = make_vec("guerdon/Reach-v0", 64)
    env.reset(0)
    actions = np.ones((64, 2), np.float32)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(50):
            env.step(actions)
        best = max(best, 50 * 64 / (time.perf_counter() - start))
    assert best > 15_000
