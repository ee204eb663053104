"""`VectorEnv`: many environments with one `step`, for all autoreset modes and backends."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, SupportsFloat

import gymnasium
import gymnasium.vector
import numpy as np
from gymnasium.vector import AutoresetMode

from guerdon.envs.checks import (
    EXPLAINED,
    LARGEST,
    InvalidStepError,
    check_flags,
    check_observations,
    check_transitions,
    fits,
    infos_fit,
    raise_interface,
    to_columns,
)
from guerdon.envs.factory import AnyEnv, EnvFactory
from guerdon.envs.rows import batch_info, copied, final_info, replaced, stack, unstack

_NEW_ARRAYS = ("gymnasium", "guerdon", "ale_py")
"""Packages whose vector environments return new arrays at every step."""
_FLAGS = {bool, np.bool_}


class Step(NamedTuple):
    """Result of a step: one row per environment that stepped."""

    env_ids: np.ndarray | None
    """Environments of the rows; None for all, in order."""
    obs_next: Any
    """True next observations, also at episode ends."""
    rew: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict[str, Any]
    """Infos of these transitions, in Gymnasium's layout (`key` and `_key`)."""
    obs: Any
    """Observations for the next action: after an end the first of the new episode, if known."""
    dummy: np.ndarray | None = None
    """Mask of rows that are not transitions; None if there are none."""
    broken: np.ndarray | None = None
    """Environments that were restarted: their open episode is lost, their rows are dummies."""


class VectorEnv:
    """Gymnasium's vector environments, with the same `Step` in all three autoreset modes.

    Args:
        env: Vector environment with ``metadata["autoreset_mode"]``.
        spec_id: Name of the environment; its registered id by default.
    """

    synchronous = True
    """Whether every step is for all environments."""
    can_begin = False
    """Whether `begin` can reset single environments."""
    n_envs: int
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    spec_id: str

    def __init__(
        self, env: gymnasium.vector.VectorEnv[Any, Any, Any], spec_id: str | None = None
    ) -> None:
        self.env = env
        self.n_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.spec_id = spec_id or (env.spec.id if env.spec else type(env.unwrapped).__name__)
        self._mode = _autoreset_mode(env)
        self.can_begin = self._mode is AutoresetMode.DISABLED
        package = type(env.unwrapped).__module__.partition(".")[0]
        # Whether the next step may overwrite the arrays of a step.
        self._overwrites = (
            package not in _NEW_ARRAYS or getattr(env.unwrapped, "copy", True) is False
        )
        shape = self.observation_space.shape
        self._shape = None if shape is None else (self.n_envs, *shape)
        self._ended: np.ndarray | None = None  # NEXT_STEP: environments whose next row is a reset

    def reset(self, seed: int | None = None) -> Any:
        """Start a new episode in every environment.

        Args:
            seed: Random seed of the environments and of `action_space`; None to continue their
                generators.

        Returns:
            The first observations.
        """
        self._ended = None
        seeds: Any = self._seeds(seed)
        kind = type(self.env.unwrapped).__name__
        if kind not in ("SyncVectorEnv", "AsyncVectorEnv", "AtariVectorEnv"):
            seeds = seeds[0]  # one generator for all environments
        elif kind == "AtariVectorEnv":
            seeds = None if seed is None else np.array(seeds)
        return self._first(seed=seeds)

    def _first(self, **options: Any) -> Any:
        """Reset with options of Gymnasium; return the observations of all environments."""
        try:
            first, _ = self.env.reset(**options)
        except EXPLAINED as error:
            raise_interface(error, None, "reset")
            raise
        self._check_obs(first, "reset")
        return copied(first)

    def _check_obs(self, obs: Any, method: str) -> None:
        space, n = self.observation_space, self.n_envs
        if not ((type(obs) is np.ndarray and obs.shape == self._shape) or fits(space, obs, n)):
            check_observations(space, obs, range(n), method)

    def _seeds(self, seed: int | None) -> Sequence[int | None]:
        """Return a seed for each environment, and seed `action_space`."""
        if seed is None:
            return [None] * self.n_envs
        *seeds, of_actions = map(to_seed, np.random.SeedSequence(seed).spawn(self.n_envs + 1))
        self.action_space.seed(of_actions)
        return seeds

    def step(self, act: Any, env_ids: np.ndarray | None = None) -> Step:
        """Take one step in every environment.

        Args:
            act: One action for each environment of the last `Step`.
            env_ids: Environments of `act`; None for those of the last `Step`.
        """
        self._check_ids(env_ids)
        try:
            obs, rew, terminated, truncated, info = self.env.step(act)
        except EXPLAINED as error:
            raise_interface(error, None, "step")
            raise
        if self._overwrites:
            obs, rew, terminated, truncated = copied((obs, rew, terminated, truncated))
        self._check_obs(obs, "step")
        rew, terminated, truncated = to_columns(self.n_envs, rew, terminated, truncated, info)
        done = terminated | truncated
        dummy, self._ended = self._ended, None
        obs_next = obs
        if np.count_nonzero(done):  # much cheaper than any()
            if self._mode is AutoresetMode.NEXT_STEP:
                self._ended = done
            elif self._mode is AutoresetMode.SAME_STEP:
                if "final_obs" not in info:
                    raise InvalidStepError("the info of ended episodes has no 'final_obs'", None)
                obs_next = replaced(obs, np.flatnonzero(done), info["final_obs"])
                self._check_obs(obs_next, "step")
                info = final_info(info, done)
            else:
                obs = self._first(options={"reset_mask": done})
        return Step(None, obs_next, rew, terminated, truncated, info, obs, dummy)

    def _check_ids(self, env_ids: np.ndarray | None) -> None:
        if env_ids is not None and not np.array_equal(env_ids, np.arange(self.n_envs)):
            raise ValueError(
                f"these {self.n_envs} environments step together: env_ids has to be None or all of "
                f"them in order, not {np.asarray(env_ids).tolist()}"
            )

    def begin(self, env_ids: np.ndarray, obs: Any) -> Any:
        """Start new episodes in some environments; their open episodes are dropped.

        Args:
            env_ids: Environments to reset. Requires `can_begin`.
            obs: Observations for the next action, of all environments.

        Returns:
            `obs` with the first observations of the new episodes.
        """
        mask = np.zeros(self.n_envs, bool)
        mask[env_ids] = True
        return replaced(obs, env_ids, self._first(options={"reset_mask": mask}))

    def example(self) -> Any:
        """Return one of the environments (or the vector environment), for reading only.

        Do not step it.
        """
        return getattr(self.env.unwrapped, "envs", (self.env.unwrapped,))[0]

    def render(self) -> Any:
        """Return a frame of each environment; requires a render mode."""
        return self.env.render()

    def close(self) -> None:
        """Close all environments."""
        self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _autoreset_mode(env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> AutoresetMode:
    # The attribute first: ale-py sets its mode in a dictionary shared by all classes.
    mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    if mode is None:
        raise ValueError(
            f"{env} has no autoreset mode: set metadata['autoreset_mode'] to a "
            f"gymnasium.vector.AutoresetMode"
        )
    return AutoresetMode(mode)


def to_seed(sequence: np.random.SeedSequence) -> int:
    """Return a seed from a sequence; ale-py and EnvPool use 31 bits."""
    return int(sequence.generate_state(1)[0] >> 1)


# --- vectors of single environments


Transition = tuple[Any, SupportsFloat, bool, bool, dict[str, Any], Any]
"""A step of one environment: true next observation, reward, terminated, truncated, info, and the
first observation of the next episode if this one ended."""


def transition(env: AnyEnv, action: Any, index: int) -> Transition:
    """Step one environment, and reset it if its episode ended; `index` is for errors."""
    try:
        obs_next, rew, terminated, truncated, info = env.step(action)
    except EXPLAINED as error:
        raise_interface(error, index, "step")
        raise
    first: Any = None
    if terminated is not False or truncated is not False:
        if not {type(terminated), type(truncated)} <= _FLAGS:
            check_flags(index, terminated=terminated, truncated=truncated)
        if terminated or truncated:
            obs_next = copied(obs_next)  # the environment may reset into the array it returned
            first = begin_episode(env, index)[0]
    return obs_next, rew, terminated, truncated, info, first


def begin_episode(env: AnyEnv, index: int, seed: int | None = None) -> Transition:
    """Reset one environment; return its first observation as that of a transition."""
    try:
        first, _ = env.reset(seed=seed)
    except EXPLAINED as error:
        raise_interface(error, index, "reset")
        raise
    return first, 0.0, False, False, {}, None


def batched(
    space: gymnasium.Space[Any],
    rows: Sequence[Transition],
    envs: Sequence[int],
    method: str = "step",
) -> Step:
    """Make a `Step` of one transition per environment.

    Args:
        space: Observation space of one environment.
        rows: Transitions.
        envs: Their environments, for errors.
        method: Method of the environments that returned them, for errors.
    """
    n = len(rows)
    observations: list[Any] = []
    rewards: list[Any] = []
    terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
    infos: dict[int, dict[str, Any]] = {}
    firsts: dict[int, Any] = {}
    for i, (obs_next, reward, end, cut, info, first) in enumerate(rows):
        observations.append(obs_next)
        rewards.append(reward)
        if info or info.__class__ is not dict:
            infos[i] = info
        if end or cut:
            terminated[i], truncated[i], firsts[i] = end, cut, first
    try:
        valid = math.hypot(*rewards) <= LARGEST  # false for NaN, an error for texts and None
        rew = np.array(rewards, np.float64)
        valid = valid and rew.ndim == 1
        last = obs = stack(space, observations)
        if firsts:
            obs = stack(space, [firsts.get(i, each) for i, each in enumerate(observations)])
        info = batch_info(infos, n) if infos else {}
        valid = valid and (not infos or infos_fit(infos.values(), info))
    except Exception:  # values of wrong types and shapes raise many
        check_transitions(space, rows, envs, method)
        raise
    if not valid:
        check_transitions(space, rows, envs, method)
    return Step(None, last, rew, terminated, truncated, info, obs)


def check_spaces(spaces: Sequence[tuple[Any, Any]]) -> None:
    """Raise an error if environments have different (observation space, action space)."""
    for i, found in enumerate(spaces):
        if found != spaces[0]:
            raise ValueError(
                f"environments of one vector need the same spaces, but environment {i} has "
                f"{found} and environment 0 has {spaces[0]}"
            )


class LocalVectorEnv(VectorEnv):
    """The ``base`` backend: environments that step one after the other in this process.

    Gymnasium's `SyncVectorEnv` takes 20 to 60 % longer per step of classic control.

    Args:
        factory: Makes each environment.
        n_envs: Number of environments.
    """

    can_begin = True

    def __init__(self, factory: EnvFactory, n_envs: int) -> None:
        self.envs: list[AnyEnv] = []
        try:
            for i in range(n_envs):
                self.envs.append(factory.build(i))
            check_spaces([(env.observation_space, env.action_space) for env in self.envs])
        except BaseException:
            self.close()
            raise
        self.n_envs, self._ids = n_envs, range(n_envs)
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self.spec_id = factory.name

    def reset(self, seed: int | None = None) -> Any:
        """Start a new episode in every environment; see `VectorEnv.reset`."""
        seeds = self._seeds(seed)
        rows = list(map(begin_episode, self.envs, self._ids, seeds))
        return batched(self.observation_space, rows, self._ids, "reset").obs

    def step(self, act: Any, env_ids: np.ndarray | None = None) -> Step:
        """Take one step in every environment, and reset those whose episode ended."""
        self._check_ids(env_ids)
        actions = unstack(self.action_space, act, self.n_envs)
        rows = list(map(transition, self.envs, actions, self._ids))
        return batched(self.observation_space, rows, self._ids)

    def begin(self, env_ids: np.ndarray, obs: Any) -> Any:
        """Start new episodes in some environments; see `VectorEnv.begin`."""
        rows = [begin_episode(self.envs[i], int(i)) for i in env_ids]
        check_transitions(self.observation_space, rows, env_ids, "reset")
        return replaced(obs, env_ids, {i: row[0] for i, row in zip(env_ids, rows, strict=True)})

    def example(self) -> Any:
        """Return the first environment."""
        return self.envs[0]

    def render(self) -> Any:
        """Return a frame of each environment; requires a render mode."""
        return tuple(env.render() for env in self.envs)

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()
