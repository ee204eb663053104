"""MiniGrid for networks."""

import gymnasium
import numpy as np
import pytest

from guerdon.config import compose
from guerdon.envs import Identity, UnusableEnvironmentError, make_vec
from guerdon.envs.ids import find_spec
from guerdon.envs.minigrid import minigrid_view

VIEW = "guerdon.envs.minigrid:minigrid_view"
IMAGES = "guerdon.envs.minigrid:minigrid_images"
KINDS, COLOURS, STATES = slice(0, 11), slice(11, 17), slice(17, 21)


def made(env_id):
    return gymnasium.make(find_spec(env_id))


def image(vector, size=7):
    """The symbolic image that a vector was made from."""
    cells = vector[:-4].reshape(size, size, 21)
    assert (np.add.reduceat(cells, [0, 11, 17], axis=-1) == 1).all()  # one of each
    return np.stack([cells[..., part].argmax(-1) for part in (KINDS, COLOURS, STATES)], -1)


def test_a_view_is_one_hot():
    env = minigrid_view(made("MiniGrid-Empty-5x5-v0"))
    obs, _ = env.reset(seed=0)
    assert env.observation_space.shape == (49 * 21 + 4,)
    assert env.observation_space.contains(obs)
    assert obs[-4:].tolist() == [1, 0, 0, 0]  # it looks east
    seen = image(obs)
    assert seen[3, 6].tolist() == [1, 0, 0]  # where it stands: empty
    assert seen[2, 6].tolist() == [2, 5, 0]  # a grey wall to its left
    assert seen[5, 4].tolist() == [8, 1, 0]  # the green goal, two ahead and two to the right
    obs = env.step(0)[0]
    assert obs[-4:].tolist() == [0, 0, 0, 1]  # it has turned left, to the north
    assert image(obs)[3, 5].tolist() == [2, 5, 0]


def test_nothing_is_lost_but_the_mission():
    raw = made("MiniGrid-DoorKey-8x8-v0")
    env = minigrid_view(made("MiniGrid-DoorKey-8x8-v0"))
    generator = np.random.default_rng(0)
    (expected, _), (obs, _) = raw.reset(seed=3), env.reset(seed=3)
    kinds = set()
    for _ in range(100):
        np.testing.assert_array_equal(image(obs), expected["image"])
        assert obs[-4:].argmax() == expected["direction"]
        kinds |= {tuple(cell) for cell in image(obs).reshape(-1, 3).tolist()}
        action = generator.integers(7)
        expected, obs = raw.step(action)[0], env.step(action)[0]
    assert {(5, 4, 0), (4, 4, 2)} <= kinds  # a yellow key, and a locked door


def test_the_whole_grid_can_be_seen_too():
    wrappers = ["minigrid.wrappers:FullyObsWrapper", VIEW]
    with make_vec("MiniGrid-Empty-5x5-v0", 1, wrappers=wrappers) as env:
        obs = env.reset(0)[0]
        for _ in range(3):
            obs = env.step(np.array([1])).obs[0]
    assert image(obs, 5)[1, 1].tolist() == [10, 0, 3]  # the agent, which looks north


def test_a_picture_shows_the_whole_grid_beside_the_view():
    with (
        make_vec("MiniGrid-Empty-8x8-v0", 1, wrappers=[VIEW]) as viewed,
        make_vec("MiniGrid-Empty-8x8-v0", 1, wrappers=[IMAGES]) as env,
    ):
        obs = env.reset(0)
        np.testing.assert_array_equal(obs["state"], viewed.reset(0))
        picture = obs["base_camera"][0]
        assert picture.shape == (64, 64, 3)  # cells of 8 x 8
        assert (picture[:8, :8] == 100).all()  # a grey wall
        assert picture[51, 51].tolist() == [0, 255, 0]  # the goal, in the last cell within
        assert picture[11, 11].tolist() == [255, 0, 0]  # the agent, in the first
        moved = env.step(np.array([2])).obs["base_camera"][0]
    assert picture[11, 19].tolist() == moved[11, 11].tolist() == [0, 0, 0]
    assert moved[11, 19].tolist() == [255, 0, 0]


@pytest.mark.parametrize("limit", [100, 4])
def test_success_is_an_end_that_pays(limit):
    with make_vec("MiniGrid-Empty-5x5-v0", 1, wrappers=[IMAGES], max_episode_steps=limit) as env:
        env.reset(0)
        steps = [env.step(np.array([action])) for action in (2, 2, 1, 2, 2)]
    told = [step.info["success"].item() for step in steps]
    assert told == [False] * 4 + [limit == 100]  # two ahead, to the right, and two again
    assert (steps[-1].rew > 0).item() == told[-1]
    assert steps[-1].info["success_once"].item() == told[-1]


def test_other_environments_are_refused():
    with pytest.raises(
        UnusableEnvironmentError, match=r"needs MiniGrid's image .* Box\(0.0, 1.0, \(4,\)"
    ):
        minigrid_view(Identity())


@pytest.mark.parametrize("backend", ["auto", "subprocess"])
def test_episodes_end_truly(backend):
    arguments = {"backend": backend, "wrappers": [VIEW], "max_episode_steps": 3}
    with make_vec("MiniGrid-Empty-5x5-v0", 2, **arguments) as env:
        first = env.reset(0)
        for _ in range(3):
            step = env.step(np.array([0, 1]))
            assert step.dummy is None
        assert step.truncated.all()
        assert step.obs_next[:, -4:].argmax(1).tolist() == [1, 3]
        np.testing.assert_array_equal(step.obs, first)


def test_grids_are_drawn_by_the_seed():
    with make_vec("MiniGrid-DoorKey-8x8-v0", 3, wrappers=[VIEW]) as env:
        first = env.reset(1)
        assert len(np.unique(first, axis=0)) == 3
        np.testing.assert_array_equal(env.reset(1), first)
        assert not np.array_equal(env.reset(2), first)


def test_a_run_has_the_view_unless_it_says_otherwise():
    assert compose(None, ["env.id=MiniGrid-Empty-8x8-v0"]).env.wrappers == [VIEW]
    assert compose(None, ["env=minigrid_doorkey"]).env.for_evaluation(2).wrappers == [VIEW]
    assert compose(None, ["env=minigrid_empty", "env.wrappers=[]"]).env.wrappers == []
    assert compose(None, ["env=cartpole"]).env.wrappers == []
