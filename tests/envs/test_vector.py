# ruff: noqa: ARG002
"""The adapter over Gymnasium's vector environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from guerdon.envs import Counting, VectorEnv, make_vec
from guerdon.envs.rows import batch_info


class Overwriting(gymnasium.vector.VectorEnv):
    """Counts in arrays that it gives again and again."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, which=("obs", "rew")):
        self.num_envs = 2
        self.single_observation_space = spaces.Box(0, 99, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.which = which
        self.obs = np.zeros((2, 1), np.float32)
        self.rew = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        self.obs[:] = 0
        return self.obs.copy(), {}

    def step(self, actions):
        self.obs += 1
        self.rew += 1
        obs = self.obs if "obs" in self.which else self.obs.copy()
        rew = self.rew if "rew" in self.which else self.rew.copy()
        return obs, rew, np.zeros(2, bool), np.zeros(2, bool), {}


@pytest.mark.parametrize("which", [("obs",), ("rew",), ("obs", "rew")])
@pytest.mark.parametrize("n_resets", [1, 4])
def test_arrays_that_are_overwritten_are_copied(which, n_resets):
    env = VectorEnv(Overwriting(which))
    observed = [env.reset() for _ in range(n_resets)][-1:]
    steps = [env.step([0, 0]) for _ in range(8)]
    observed += [step.obs for step in steps]
    assert [float(obs[0, 0]) for obs in observed] == list(range(9))
    first = float(steps[0].rew[0])
    assert [float(step.rew[0]) - first for step in steps] == list(range(8))


def test_a_step_without_an_end_has_one_array_of_observations():
    env = VectorEnv(Overwriting(which=()))
    env.reset()
    step = env.step([0, 0])
    assert step.obs is step.obs_next
    assert step.dummy is None
    assert step.broken is None


def test_rewards_are_floats_whatever_the_environment_pays_in():
    class Whole(Overwriting):
        def step(self, actions):
            obs, rew, *rest = super().step(actions)
            return obs, rew.astype(np.int32), *rest

    env = VectorEnv(Whole())
    env.reset()
    rew = env.step([0, 0]).rew
    assert rew.dtype == np.float32
    assert rew.tolist() == [1.0, 1.0]


def test_a_reset_into_the_last_observations_leaves_the_final_ones_true():
    class Resetting(Overwriting):
        metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

        def reset(self, *, seed=None, options=None):
            self.obs[options["reset_mask"] if options else slice(None)] = 0
            return self.obs, {}

        def step(self, actions):
            self.obs = self.obs + 1
            done = self.obs[:, 0] == [9, 3]
            return self.obs, self.rew.copy(), done, np.zeros(2, bool), {}

    env = VectorEnv(Resetting())
    env.reset()
    steps = [env.step([0, 0]) for _ in range(10)]
    assert [int(step.obs_next[1, 0]) for step in steps] == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    assert [int(step.obs[1, 0]) for step in steps] == [1, 2, 0, 1, 2, 0, 1, 2, 0, 1]
    assert [int(step.obs_next[0, 0]) for step in steps] == [*range(1, 10), 1]


class Nested(gymnasium.Env):
    """Dictionaries, tuples and texts as observations; ends after two steps."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(0, 99, (2,), np.float32),
            "pair": spaces.Tuple((spaces.Discrete(9), spaces.Box(0, 99, (), np.float32))),
            "text": spaces.Text(3, charset="abc"),
        }
    )
    action_space = spaces.Discrete(2)

    def _observed(self):
        place = np.full(2, self.time, np.float32)
        text = "abc"[: self.time]
        return {"place": place, "pair": (self.time, np.float32(self.time)), "text": text}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 1
        return self._observed(), {}

    def step(self, action):
        self.time += 1
        return self._observed(), 0.0, self.time == 3, False, {"end": {"time": self.time}}


def test_nested_observations_end_truly_in_same_step_mode():
    env = VectorEnv(SyncVectorEnv([Nested, Nested], autoreset_mode=AutoresetMode.SAME_STEP))
    env.reset(0)
    env.step([0, 0])
    step = env.step([0, 0])
    assert step.terminated.all()
    assert step.obs_next["place"].tolist() == [[3, 3], [3, 3]]
    assert [part.tolist() for part in step.obs_next["pair"]] == [[3, 3], [3, 3]]
    assert step.obs_next["text"] == ("abc", "abc")
    assert step.obs["place"].tolist() == [[1, 1], [1, 1]]
    assert [part.tolist() for part in step.obs["pair"]] == [[1, 1], [1, 1]]
    assert step.obs["text"] == ("a", "a")
    assert step.info["end"]["time"].tolist() == [3, 3]


def test_final_observations_may_come_as_arrays():
    class Final(Overwriting):
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

        def step(self, actions):
            obs, rew, _, truncated, _ = super().step(actions)
            final = np.full((2, 1), 50, np.float32)
            return obs, rew, np.array([False, True]), truncated, {"final_obs": final}

    env = VectorEnv(Final())
    env.reset()
    step = env.step([0, 0])
    assert step.obs_next.tolist() == [[1], [50]]
    assert step.obs.tolist() == [[1], [1]]
    assert "final_obs" not in step.info


def test_infos_of_same_step_mode_are_those_of_the_transition():
    makers = [lambda: Counting(0, lengths=[2]), lambda: Counting(1, lengths=[3])]
    env = VectorEnv(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))
    env.reset(0)
    env.step([0, 0])
    info = env.step([0, 0]).info
    assert info["step"].tolist() == [2, 2]
    assert info["_step"].tolist() == [True, True]
    assert info["_new"].tolist() == [False, False]


def test_infos_are_batched_with_masks():
    infos = {
        0: {"a": 1, "name": "x", "deep": {"b": 0.5}},
        2: {"a": 3, "size": np.ones(2), "ragged": np.ones(1)},
        3: {"ragged": np.ones(2)},
    }
    batch = batch_info(infos, 4)
    assert batch["a"].tolist() == [1, 0, 3, 0]
    assert batch["_a"].tolist() == [True, False, True, False]
    assert batch["name"].tolist() == ["x", None, None, None]
    assert batch["deep"]["b"].tolist() == [0.5, 0, 0, 0]
    assert batch["deep"]["_b"].tolist() == [True, False, False, False]
    assert batch["size"].tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    assert batch["ragged"][3].tolist() == [1, 1]
    assert batch["_ragged"].tolist() == [False, False, True, True]


def test_a_vector_that_does_not_say_how_it_resets_is_refused():
    class Silent(Overwriting):
        metadata = {}  # noqa: RUF012

    with pytest.raises(ValueError, match="has no autoreset mode"):
        VectorEnv(Silent())


def test_environments_that_step_together_take_no_subset():
    env = VectorEnv(Overwriting())
    env.reset()
    env.step([0, 0], np.array([0, 1]))
    with pytest.raises(ValueError, match=r"step together.*\[1\]"):
        env.step([0], np.array([1]))


@pytest.mark.parametrize("backend", ["native", "base", "subprocess"])
def test_an_example_can_be_asked_wherever_environments_run(backend):
    with make_vec("guerdon/BitFlip-v0", 2, backend=backend, kwargs={"n_bits": 3}) as env:
        assert env.example().unwrapped.compute_reward(np.zeros(3), np.zeros(3), {}) == 0.0


def test_the_example_of_gymnasiums_own_vector_is_its_first_environment():
    vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    assert VectorEnv(vector).example() is vector.envs[0]
