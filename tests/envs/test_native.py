"""Vector environments of other packages, as they are installed."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from guerdon.data import Batch, ReplayBuffer
from guerdon.envs import VectorEnv, make_vec
from tests.rounding import assert_close


def transitions(env: VectorEnv, actions: np.ndarray, seed: int) -> list[list[tuple]]:
    """Real rows of each environment as (obs, act, rew, terminated, truncated, obs_next)."""
    obs = env.reset(seed)
    rows: list[list[tuple]] = [[] for _ in range(env.n_envs)]
    for _ in range(200):
        # an environment's action depends on its own rows only, so that modes can be compared
        act = np.array([actions[min(len(row), len(actions) - 1), i] for i, row in enumerate(rows)])
        step = env.step(act)
        for i, row in enumerate(rows):
            if (step.dummy is None or not step.dummy[i]) and len(row) < len(actions):
                ends = step.terminated[i], step.truncated[i]
                row.append((obs[i], act[i], step.rew[i], *ends, step.obs_next[i]))
        obs = step.obs
        if all(len(row) == len(actions) for row in rows):
            break
    return rows


def assert_same(first, second):
    for ours, theirs in zip(first, second, strict=True):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_array_equal(x, y)


# --- Gymnasium


def test_cartpoles_native_vector_gives_true_transitions():
    env = make_vec("CartPole-v1", 4)
    buffer = ReplayBuffer(4000, 4, seed=0)
    generator = np.random.default_rng(0)
    obs = env.reset(0)
    n_dummies = n_ends = 0
    for _ in range(200):
        act = generator.integers(2, size=4)
        step = env.step(act)
        rows = Batch(
            obs=obs,
            act=act,
            rew=step.rew,
            terminated=step.terminated,
            truncated=step.truncated,
            obs_next=step.obs_next,
        )
        real = np.ones(4, bool) if step.dummy is None else ~step.dummy
        buffer.add(rows[real], env_ids=np.flatnonzero(real))
        n_dummies += 0 if step.dummy is None else step.dummy.sum()
        n_ends += (step.terminated | step.truncated).sum()
        obs = step.obs
    assert n_ends > 20
    assert n_ends - 4 <= n_dummies <= n_ends
    assert len(buffer) == 800 - n_dummies
    batch, _ = buffer.sample(0)
    # the pole's angle moves by its speed, and the cart by its own: no row crosses an end
    for place in (0, 2):
        moved = batch.obs[:, place] + 0.02 * batch.obs[:, place + 1]
        assert_close(batch.obs_next[:, place], moved)
    fallen = (np.abs(batch.obs_next[:, 2]) > 0.2095) | (np.abs(batch.obs_next[:, 0]) > 2.4)
    np.testing.assert_array_equal(fallen, batch.terminated)
    assert (batch.rew == 1).all()


# --- ale-py


def pong(**arguments) -> VectorEnv:
    return make_vec("ALE/Pong-v5", 2, atari=True, **arguments)


def test_atari_frames_are_native_stacks_of_four():
    pytest.importorskip("ale_py")
    with pong() as env:
        assert type(env.env).__name__ == "AtariVectorEnv"
        assert env.observation_space.shape == (4, 84, 84)
        assert env.observation_space.dtype == np.uint8
        obs = env.reset(0)
        assert obs.shape == (2, 4, 84, 84)
        assert obs.dtype == np.uint8
        assert env.step(np.zeros(2, np.int64)).rew.dtype == np.float32


def test_atari_ends_truly_in_both_autoreset_modes():
    pytest.importorskip("ale_py")
    actions = np.random.default_rng(0).integers(6, size=(45, 2))
    rows = []
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        with pong(max_episode_steps=20, kwargs={"autoreset_mode": mode}) as env:
            rows.append(transitions(env, actions, seed=3))
    assert_same(*rows)
    for row in rows[0]:
        assert [bool(one[4]) for one in row] == [(t + 1) % 20 == 0 for t in range(45)]
        obs, obs_next = (np.array([one[k] for one in row]) for k in (0, 5))
        # a stack moves on by one frame, also into the last observation of an episode
        np.testing.assert_array_equal(obs_next[:, :3], obs[:, 1:])


def test_modes_of_two_atari_vectors_do_not_mix():
    pytest.importorskip("ale_py")
    with (
        pong(max_episode_steps=2, kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP}) as first,
        pong(max_episode_steps=2) as second,
    ):
        first.reset(0)
        second.reset(0)
        act = np.zeros(2, np.int64)
        assert [first.step(act).dummy is None for _ in range(3)] == [True, True, False]
        assert [second.step(act).dummy is None for _ in range(3)] == [True, True, True]


def test_atari_seeds_and_rewards_are_raw():
    pytest.importorskip("ale_py")
    with make_vec("ALE/Asterix-v5", 2, atari=True) as env:
        actions = np.random.default_rng(1).integers(9, size=(30, 2))
        first = transitions(env, actions, seed=1)
        assert_same(transitions(env, actions, seed=1), first)
        assert max(row[2] for rows in first for row in rows) == 50  # clipped it is 1
        assert not np.array_equal(first[0][-1][0], first[1][-1][0])


def test_a_lost_life_ends_no_atari_episode():
    pytest.importorskip("ale_py")
    with make_vec("ALE/Breakout-v5", 2, atari=True) as env:
        env.reset(0)
        lost = False
        for _ in range(60):  # noop: the ball falls
            step = env.step(np.full(2, 1))
            lost |= bool((step.info["lives"] < 5).any())
            assert not step.terminated.any()
            if lost:
                break
        assert lost


@pytest.mark.parametrize("backend", ["base", "subprocess"])
def test_atari_frames_of_single_environments_look_the_same(backend):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    with pong(backend=backend, max_episode_steps=3) as env:
        assert env.observation_space.shape == (4, 84, 84)
        obs = env.reset(0)
        assert obs.shape == (2, 4, 84, 84)
        assert obs.dtype == np.uint8
        assert 50 < obs[:, -1].mean() < 150
        assert not obs[:, :-1].any()  # as ale-py's vector begins
        steps = [env.step(np.zeros(2, np.int64)) for _ in range(3)]
        assert [step.truncated.tolist() for step in steps] == [[False] * 2] * 2 + [[True] * 2]


def test_raw_atari_frames_come_from_base():
    pytest.importorskip("ale_py")
    with make_vec("ALE/Pong-v5", 1) as env:
        assert env.reset(0).shape == (1, 210, 160, 3)
    with pytest.raises(ValueError, match="preprocessed frames"):
        make_vec("ALE/Pong-v5", 1, backend="native")


# --- EnvPool


def test_envpool_marks_its_dummy_rows():
    pytest.importorskip("envpool")
    with make_vec("CartPole-v1", 3, backend="envpool", max_episode_steps=5) as env:
        assert env.spec_id == "CartPole-v1"
        assert env.observation_space.shape == (4,)
        obs = env.reset(0)
        for t in range(1, 18):
            step = env.step(np.full(3, t % 2))
            if t % 6 == 0:
                assert step.dummy.all()
                assert not step.rew.any()
            else:
                assert step.dummy is None
                assert (step.rew == 1).all()
                moved = obs[:, 0] + 0.02 * obs[:, 1]
                assert_close(step.obs_next[:, 0], moved)
                assert (step.truncated == (t % 6 == 5)).all()
            obs = step.obs


def test_envpool_is_seeded():
    pytest.importorskip("envpool")
    with make_vec("CartPole-v1", 3, backend="envpool") as env:
        first = env.reset(1)
        assert len(np.unique(first[:, 0])) == 3
        second = env.reset()
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(env.reset(1), first)
        np.testing.assert_array_equal(env.reset(), second)
        assert not np.array_equal(env.reset(2), first)


def test_envpool_plays_atari():
    pytest.importorskip("envpool")
    with make_vec("ALE/Pong-v5", 2, backend="envpool", atari=True) as env:
        assert env.reset(0).shape == (2, 4, 84, 84)
        assert env.env.config["repeat_action_probability"] == 0.25
        assert env.env.config["reward_clip"] is False
        assert env.step(np.zeros(2, np.int64)).obs.dtype == np.uint8


# --- MuJoCo and MiniGrid


def test_mujoco_runs():
    pytest.importorskip("mujoco")
    with make_vec("InvertedPendulum-v5", 2) as env:
        env.reset(0)
        for _ in range(60):
            step = env.step(np.full((2, 1), 0.5, np.float32))
            if step.terminated.any():
                break
        assert step.terminated.any()
        assert np.abs(step.obs_next[step.terminated, 1]).min() > 0.2  # it lies
        assert np.abs(step.obs[step.terminated, 1]).max() < 0.02  # it stands


def test_minigrid_runs_with_its_texts():
    pytest.importorskip("minigrid")
    with make_vec("MiniGrid-Empty-5x5-v0", 2, max_episode_steps=3) as env:
        obs = env.reset(0)
        assert obs["image"].shape == (2, 7, 7, 3)
        assert obs["mission"] == ("get to the green goal square",) * 2
        for _ in range(3):
            step = env.step(np.array([0, 1]))
        assert step.truncated.all()
        assert step.obs_next["direction"].tolist() == [1, 3]  # three turns from facing east
        assert step.obs["direction"].tolist() == [0, 0]


def test_wrappers_are_named_by_their_class():
    pytest.importorskip("minigrid")
    wrappers = ["minigrid.wrappers:ImgObsWrapper"]
    for backend in ("base", "subprocess"):
        with make_vec("MiniGrid-Empty-5x5-v0", 2, backend=backend, wrappers=wrappers) as env:
            assert env.reset(0).shape == (2, 7, 7, 3)


# --- limits


class Endless(gymnasium.vector.VectorEnv):
    """Never ends by itself; like those of others, with few arguments."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - Gymnasium's

    def __init__(self, num_envs, limit=None):
        self.num_envs, self.limit, self.steps = num_envs, limit, 0
        self.single_observation_space = spaces.Box(-1, 1, (1,))
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-1, 1, (num_envs, 1))
        self.action_space = spaces.MultiDiscrete([2] * num_envs)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        self.steps = 0
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, actions):  # noqa: ARG002
        self.steps += 1
        over = np.full(self.num_envs, self.limit is not None and self.steps % self.limit == 0)
        none = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 1), np.float32), np.zeros(self.num_envs), none, over, {}


class EndlessWithLimit(Endless):
    def __init__(self, num_envs, max_episode_steps=None):
        super().__init__(num_envs, max_episode_steps)


class Alone(gymnasium.Env):
    """What the vectors are many of."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.zeros(1, np.float32), {}

    def step(self, action):  # noqa: ARG002
        return np.zeros(1, np.float32), 0.0, False, False, {}


gymnasium.register("tests/Endless-v0", Alone, vector_entry_point=Endless)
gymnasium.register("tests/Endless-v1", Alone, vector_entry_point=EndlessWithLimit)
gymnasium.register("tests/Endless-v2", Alone, vector_entry_point=Endless, max_episode_steps=5)


@pytest.mark.parametrize(
    ("env_id", "options", "at", "native"),
    [
        ("tests/Endless-v0", {}, None, True),
        ("tests/Endless-v0", {"max_episode_steps": 5}, 5, False),  # it would not know what to do
        ("tests/Endless-v0", {"default_limit": 5}, 5, False),
        ("tests/Endless-v1", {"max_episode_steps": 5}, 5, True),
        ("tests/Endless-v1", {"default_limit": 5}, 5, True),
        ("tests/Endless-v1", {"default_limit": 5, "max_episode_steps": 3}, 3, True),
        ("tests/Endless-v2", {}, 5, False),
    ],
)
def test_a_limit_counts_whoever_steps(env_id, options, at, native):
    with make_vec(env_id, 2, **options) as env:
        assert (type(env) is VectorEnv) == native
        env.reset(seed=0)
        ends = [env.step(np.zeros(2, int)).truncated.all() for _ in range(8)]
    assert ends.index(True) + 1 == at if at else not any(ends)
