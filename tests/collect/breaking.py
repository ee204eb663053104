"""Environments that break Gymnasium's interface, each in one way."""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

BAD = 3
"""The step of an episode that is wrong."""
LENGTH = 5
"""Steps of an episode."""
SHAPE = (4,)
SPACES: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-np.inf, np.inf, SHAPE),
    "double": spaces.Box(-np.inf, np.inf, SHAPE, np.float64),
    "image": spaces.Box(0, 255, (2, 2, 3), np.uint8),
    "discrete": spaces.Discrete(5),
    "dict": spaces.Dict({"state": spaces.Box(-np.inf, np.inf, SHAPE), "goal": spaces.Discrete(3)}),
    "tuple": spaces.Tuple([spaces.Box(-np.inf, np.inf, SHAPE), spaces.Discrete(3)]),
}
NAN, INF = float("nan"), float("inf")


def box(value: Any = 0.0, place: int = 2) -> np.ndarray:
    """An observation with a value at a place."""
    obs = np.zeros(SHAPE, np.float64)
    obs[place] = value
    return obs


class Object:
    def __repr__(self) -> str:
        return "Object()"


STEPS: dict[str, tuple[str, dict[str, Any] | Any, str]] = {
    # name: space, what `step` returns instead (fields, or all of it), what the error says
    "nan in the observation": ("box", {"obs": box(NAN)}, "observation is nan at index 2, not a fi"),
    "infinite observation": (
        "box",
        {"obs": box(INF)},
        "observation is inf at index 2, not a finite",
    ),
    "-inf in the observation": ("box", {"obs": box(-INF)}, "the observation is -inf at index 2"),
    "huge observation": (
        "box",
        {"obs": box(1e30)},
        "observation is 1e+30 at index 2, too large: po",
    ),
    "beyond float32": ("box", {"obs": box(1e39)}, "the observation is"),
    "double beyond float32": ("double", {"obs": box(1e39)}, "is 1e+39 at index 2, too large"),
    "double nan": ("double", {"obs": box(NAN, 0)}, "the observation is nan at index 0"),
    "nan in a list": ("box", {"obs": [0.0, NAN, 0.0, 0.0]}, "the observation is nan at index 1"),
    "no observation": ("box", {"obs": None}, "the observation is None, not numbers"),
    "none in a list": ("box", {"obs": [0.0, None, 0.0, 0.0]}, "[0.0, None, 0.0, 0.0], not numbers"),
    "text": ("box", {"obs": "left"}, "the observation is 'left', not numbers"),
    "texts": ("box", {"obs": list("abcd")}, "is ['a', 'b', 'c', 'd'], not numbers"),
    "number texts": ("box", {"obs": ["1", "2", "3", "4"]}, "['1', '2', '3', '4'], not numbers"),
    "bytes": ("box", {"obs": b"1234"}, "is b'1234', not numbers"),
    "objects": ("box", {"obs": np.full(4, None)}, "an array of shape (4,) and dtype object, not n"),
    "complex observation": ("box", {"obs": np.zeros(4, complex)}, "dtype complex128, not numbers"),
    "an object": ("box", {"obs": Object()}, "the observation is Object(), not numbers"),
    "a ragged list": ("box", {"obs": [[1.0], 2.0, 3.0, 4.0]}, "is [[1.0], 2.0, 3.0, 4.0], not num"),
    "a dictionary": ("box", {"obs": {"state": box()}}, "not numbers"),
    "too long": ("box", {"obs": np.zeros(5)}, "has the shape (5,), but its space (4,)"),
    "too short": ("box", {"obs": np.zeros(3)}, "has the shape (3,), but its space (4,)"),
    "one number": ("box", {"obs": 0.5}, "has the shape (), but its space (4,)"),
    "one in an array": ("box", {"obs": np.zeros(1)}, "has the shape (1,), but its space (4,)"),
    "empty": ("box", {"obs": np.zeros(0)}, "has the shape (0,), but its space (4,)"),
    "a batch of one": (
        "box",
        {"obs": np.zeros((1, 4))},
        "has the shape (1, 4), but its space (4,)",
    ),
    "a column": ("box", {"obs": np.zeros((4, 1))}, "has the shape (4, 1), but its space (4,)"),
    "float image": (
        "image",
        {"obs": np.full((2, 2, 3), 0.5)},
        "is float64, and its values change in",
    ),
    "overflowing image": ("image", {"obs": np.full((2, 2, 3), 256)}, "is int64, and its values"),
    "negative image": (
        "image",
        {"obs": np.full((2, 2, 3), -1)},
        "values change in the uint8 of its",
    ),
    "channels first": (
        "image",
        {"obs": np.zeros((3, 2, 2), np.uint8)},
        "has the shape (3, 2, 2), bu",
    ),
    "nan image": (
        "image",
        {"obs": np.full((2, 2, 3), NAN)},
        "is nan at index (0, 0, 0), not a fin",
    ),
    "grey image": (
        "image",
        {"obs": np.zeros((2, 2), np.uint8)},
        "has the shape (2, 2), but its space",
    ),
    "too high": ("discrete", {"obs": 5}, "the observation is 5, which is not in Discrete(5)"),
    "negative": ("discrete", {"obs": -1}, "the observation is -1, which is not in Discrete(5)"),
    "a fraction": ("discrete", {"obs": 1.5}, "is float64, and its values change in the int64"),
    "nan state": ("discrete", {"obs": NAN}, "the observation is nan, not a finite number"),
    "no state": ("discrete", {"obs": None}, "the observation is None, not numbers"),
    "named state": ("discrete", {"obs": "2"}, "the observation is '2', not numbers"),
    "one-hot state": ("discrete", {"obs": np.eye(5)[1]}, "has the shape (5,), but its space ()"),
    "no dictionary": (
        "dict",
        {"obs": box()},
        "an array of shape (4,) and dtype float64, not a dic",
    ),
    "pairs": ("dict", {"obs": (box(), 1)}, "not a dictionary"),
    "missing key": ("dict", {"obs": {"state": box()}}, "the observation lacks the key 'goal'"),
    "nan in a part": (
        "dict",
        {"obs": {"state": box(NAN), "goal": 1}},
        "observation 'state' is nan at",
    ),
    "wrong part": (
        "dict",
        {"obs": {"state": box(), "goal": 3}},
        "observation 'goal' is 3, which is",
    ),
    "short part": (
        "dict",
        {"obs": {"state": box()[:2], "goal": 1}},
        "observation 'state' has the sha",
    ),
    "empty part": (
        "dict",
        {"obs": {"state": None, "goal": 1}},
        "the observation 'state' is None, not",
    ),
    "nan in a tuple": ("tuple", {"obs": (box(NAN), 1)}, "the observation '0' is nan at index 2"),
    "nan reward": ("box", {"rew": NAN}, "the reward is nan, not a finite number"),
    "infinite reward": ("box", {"rew": INF}, "the reward is inf, not a finite number"),
    "-inf reward": ("box", {"rew": -INF}, "the reward is -inf, not a finite number"),
    "huge reward": ("box", {"rew": 1e30}, "reward is 1e+30, too large: policies learn in float32"),
    "huge loss": ("box", {"rew": -1e20}, "the reward is -1e+20, too large"),
    "reward beyond float32": ("box", {"rew": 1e300}, "the reward is 1e+300, too large"),
    "float32 reward": ("box", {"rew": np.float32(INF)}, "the reward is inf, not a finite number"),
    "huge integer": ("box", {"rew": 10**30}, "the reward is 1"),
    "no reward": ("box", {"rew": None}, "the reward is None, not a number"),
    "reward as text": ("box", {"rew": "1.0"}, "the reward is '1.0', not a number"),
    "word": ("box", {"rew": "good"}, "the reward is 'good', not a number"),
    "bytes as reward": ("box", {"rew": b"1"}, "the reward is b'1', not a number"),
    "reward in an array": (
        "box",
        {"rew": np.ones(1)},
        "an array of shape (1,) and dtype float64, no",
    ),
    "two rewards": ("box", {"rew": np.ones(2)}, "the reward is an array of shape (2,)"),
    "no rewards": ("box", {"rew": np.ones(0)}, "the reward is an array of shape (0,)"),
    "reward in a list": ("box", {"rew": [1.0]}, "the reward is [1.0], not a number"),
    "reward in a tuple": ("box", {"rew": (1.0,)}, "the reward is (1.0,), not a number"),
    "named rewards": ("box", {"rew": {"agent": 1.0}}, "the reward is {'agent': 1.0}, not a number"),
    "complex reward": ("box", {"rew": 1j}, "the reward is 1j, not a number"),
    "object as reward": ("box", {"rew": Object()}, "the reward is Object(), not a number"),
    "terminated 'False'": (
        "box",
        {"terminated": "False"},
        "terminated is 'False', not true or false",
    ),
    "terminated 'True'": ("box", {"terminated": "True"}, "terminated is 'True', not true or false"),
    "terminated ''": ("box", {"terminated": ""}, "terminated is '', not true or false"),
    "terminated None": ("box", {"terminated": None}, "terminated is None, not true or false"),
    "terminated nan": ("box", {"terminated": NAN}, "terminated is nan, not true or false"),
    "terminated 2": ("box", {"terminated": 2}, "terminated is 2, not true or false"),
    "terminated 0.5": ("box", {"terminated": 0.5}, "terminated is 0.5, not true or false"),
    "terminated []": ("box", {"terminated": []}, "terminated is [], not true or false"),
    "terminated [False]": (
        "box",
        {"terminated": [False]},
        "terminated is [False], not true or fal",
    ),
    "two ends": (
        "box",
        {"terminated": np.zeros(2, bool)},
        "an array of shape (2,) and dtype bool, n",
    ),
    "named ends": ("box", {"terminated": {"agent": False}}, "{'agent': False}, not true or false"),
    "truncated 'False'": ("box", {"truncated": "False"}, "truncated is 'False', not true or false"),
    "truncated None": ("box", {"truncated": None}, "truncated is None, not true or false"),
    "truncated info": ("box", {"truncated": {}}, "truncated is {}, not true or false"),
    "no info": ("box", {"info": None}, "the info is None, not a dictionary"),
    "info as a list": ("box", {"info": []}, "the info is [], not a dictionary"),
    "pairs as info": ("box", {"info": [("a", 1)]}, "the info is [('a', 1)], not a dictionary"),
    "info as text": ("box", {"info": "won"}, "the info is 'won', not a dictionary"),
    "no text as info": ("box", {"info": ""}, "the info is '', not a dictionary"),
    "a number as info": ("box", {"info": 1}, "the info is 1, not a dictionary"),
    "success as text": (
        "box",
        {"info": {"success": "no"}},
        "info['success'] is 'no', not true, fals",
    ),
    "successes": (
        "box",
        {"info": {"is_success": [True, False]}},
        "info['is_success'] is [True, Fa",
    ),
    "named success": (
        "box",
        {"info": {"success": {"a": 1}}},
        "info['success'] is {'a': 1}, not true",
    ),
    "four values": (
        "box",
        (box(), 1.0, False, {}),
        "step() does not return (observation, reward, te",
    ),
    "three values": ("box", (box(), 1.0, False), "not enough values to unpack (expected 5, got 3)"),
    "six values": (
        "box",
        (box(), 1.0, False, False, {}, 1),
        "too many values to unpack (expected 5",
    ),
    "only the observation": ("box", box(), "not enough values to unpack (expected 5, got 4)"),
    "nothing": (
        "box",
        None,
        "step() does not return (observation, reward, terminated, truncated, in",
    ),
    "one value": (
        "box",
        1.0,
        "step() does not return (observation, reward, terminated, truncated, in",
    ),
}
RESETS: dict[str, tuple[Any, str]] = {
    "observation alone": (box(), "reset() does not return (observation, info): too many values to"),
    "nothing": (None, "reset() does not return (observation, info): cannot unpack"),
    "three values": (
        (box(), {}, 1),
        "reset() does not return (observation, info): too many values",
    ),
    "no observation": ((None, {}), "the observation is None, not numbers"),
    "nan": ((box(NAN), {}), "the observation is nan at index 2, not a finite number"),
    "infinite": ((box(INF), {}), "the observation is inf at index 2, not a finite number"),
    "huge": ((box(1e30), {}), "the observation is 1e+30 at index 2, too large"),
    "too long": ((np.zeros(5), {}), "has the shape (5,), but its space (4,)"),
    "one number": ((0.0, {}), "has the shape (), but its space (4,)"),
    "text": (("start", {}), "the observation is 'start', not numbers"),
}
STARTS = {"first": 1, "next": 2}
"""Which reset is wrong."""


class Breaking(gymnasium.Env[Any, Any]):
    """Counts episodes of `LENGTH` steps; one method returns something wrong once.

    Args:
        fault: A key of `STEPS` or `RESETS`; None for none.
        method: The method that is wrong.
        space: Observation space of an environment without a fault.
        resets: Number of the reset that is wrong.
    """

    def __init__(
        self, fault: str | None = None, method: str = "step", space: str = "box", resets: int = 1
    ) -> None:
        self._fault, self._method, self._resets = fault, method, resets
        self.observation_space = SPACES[space]
        self.action_space = spaces.Discrete(2)
        self._step = self._n_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        self._step = 0
        self._n_resets += 1
        if self._fault and self._method == "reset" and self._n_resets == self._resets:
            return RESETS[self._fault][0]
        return self._observation(), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        self._step += 1
        good = {
            "obs": self._observation(), "rew": 1.0, "terminated": self._step == LENGTH,
            "truncated": False, "info": {},
        }  # fmt: skip
        if not self._fault or self._method != "step" or self._step != BAD:
            return tuple(good.values())
        bad = STEPS[self._fault][1]
        return tuple({**good, **bad}.values()) if isinstance(bad, dict) else bad

    def _observation(self) -> Any:
        if isinstance(self.observation_space, spaces.Box):
            return np.zeros(self.observation_space.shape, self.observation_space.dtype)
        if isinstance(self.observation_space, spaces.Discrete):
            return 1
        parts = (box(), 1)
        return (
            parts
            if isinstance(self.observation_space, spaces.Tuple)
            else dict(zip(("state", "goal"), parts, strict=True))
        )


class OldReset(Breaking):
    """Has `reset` of an older interface."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


def batch(*rows: np.ndarray) -> np.ndarray:
    """Observations of a vector environment."""
    return np.stack(rows).astype(np.float32)


N = 3
ONES = np.ones(N)
VECTORS: dict[str, tuple[dict[str, Any] | Any, int | None, str]] = {
    # name: what `step` returns instead, the environment (None: all), what the error says
    "nan": ({"obs": batch(box(), box(NAN), box())}, 1, "the observation is nan at"),
    "huge": ({"obs": batch(box(), box(), box(1e30))}, 2, "the observation is 1e+30"),
    "too few rows": (
        {"obs": np.zeros((N - 1, *SHAPE))},
        None,
        "has the shape (2, 4), but its space (3, 4)",
    ),
    "one row": ({"obs": box()}, None, "the observation has the shape (4,), but its space (3, 4)"),
    "a list": ({"obs": [box(), box()]}, None, "has the shape (2, 4), but its space (3, 4)"),
    "no observation": ({"obs": None}, None, "the observation is None, not numbers"),
    "nan reward": ({"rew": np.array([1.0, 1.0, NAN])}, 2, "the reward is nan, not a fin"),
    "huge reward": ({"rew": np.array([1e30, 1, 1])}, 0, "the reward is 1e+30, too large"),
    "no reward": (
        {"rew": None},
        None,
        "the reward is None, not a number for each of 3 environments",
    ),
    "one reward": (
        {"rew": 1.0},
        None,
        "the reward is 1.0, not a number for each of 3 environments",
    ),
    "a column": (
        {"rew": np.ones((N, 1))},
        None,
        "an array of shape (3, 1) and dtype float64, not a numbe",
    ),
    "texts": ({"rew": np.array(["1", "2", "3"])}, None, "not a number for each of 3 environments"),
    "ends as texts": (
        {"terminated": np.array(["False"] * N)},
        None,
        "terminated is an array of shape (3,)",
    ),
    "counts": ({"terminated": np.array([0, 0, 2])}, 2, "terminated is 2, not t"),
    "one end": (
        {"truncated": False},
        None,
        "truncated is False, not a number for each of 3 environments",
    ),
    "no end": (
        {"truncated": None},
        None,
        "truncated is None, not a number for each of 3 environments",
    ),
    "infos": ({"info": [{}] * N}, None, "the info is [{}, {}, {}], not a dictionary"),
    "four values": (
        (np.zeros((N, 4)), ONES, ONES, {}),
        None,
        "step() does not return (observation, rew",
    ),
}


class BreakingVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector environment with episodes of `LENGTH` steps, of which one step is wrong."""

    def __init__(self, fault: str | None = None) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs, self._fault = N, fault
        self.single_observation_space, self.single_action_space = SPACES["box"], spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, N)
        self.action_space = batch_space(self.single_action_space, N)
        self._step = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # noqa: ARG002
        return np.zeros((N, *SHAPE), np.float32), {}

    def step(self, actions: Any) -> Any:  # noqa: ARG002
        self._step += 1
        good = {
            "obs": np.zeros((N, *SHAPE), np.float32), "rew": ONES,
            "terminated": np.zeros(N, bool), "truncated": np.zeros(N, bool), "info": {},
        }  # fmt: skip
        if self._fault is None or self._step != BAD:
            return tuple(good.values())
        bad = VECTORS[self._fault][0]
        return tuple({**good, **bad}.values()) if isinstance(bad, dict) else bad


def leave(code: Any = None) -> None:
    sys.exit(code)


def stop() -> None:
    raise StopIteration


def miss() -> None:
    raise FileNotFoundError(2, "No such file or directory", "world.xml")


FAILURES = {
    # name: what a method does instead, what the error says
    "sys.exit": (lambda: leave(3), "it calls sys.exit(3)"),
    "sys.exit without an error": (leave, "it calls sys.exit(None)"),
    "StopIteration": (stop, "it raises StopIteration"),
    "a missing file": (miss, "No such file or directory: 'world.xml'"),
}


class Failing(gymnasium.Env[Any, Any]):
    """An environment that fails in one of its methods."""

    observation_space, action_space = SPACES["box"], spaces.Discrete(2)

    def __init__(self, failure: str, method: str) -> None:
        self._failure, self._method = FAILURES[failure][0], method
        self._run("__init__")

    def _run(self, method: str) -> None:
        if method == self._method:
            self._failure()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # noqa: ARG002
        self._run("reset")
        return box(), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        self._run("step")
        return box(), 0.0, False, False, {}


class Spaces(Breaking):
    """An environment with other spaces; None leaves one out."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        if observation_space is not None:
            self.observation_space = observation_space
        if action_space is not None:
            self.action_space = action_space


EMPTY = {
    "box": (spaces.Box(-1, 1, (0,)), "its observation_space is Box("),
    "image": (spaces.Box(0, 255, (0, 8, 3), np.uint8), "its observation_space is Box("),
    "dict": (spaces.Dict({}), "its observation_space is Dict()"),
    "tuple": (spaces.Tuple([]), "its observation_space is Tuple()"),
    "part": (
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Dict({})])}),
        "its observation_space['b'][0] is Dict()",
    ),
}
