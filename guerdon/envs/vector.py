"""`VectorEnv`: many environments behind one `step`, whatever resets them and wherever they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from gymnasium.vector import AutoresetMode

from guerdon.envs import rows
from guerdon.envs.seeding import spawn_seeds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import gymnasium
    import gymnasium.vector


class Step(NamedTuple):
    """What came back from environments: one row for each of them."""

    env_ids: np.ndarray | None
    """The environments the rows belong to; None is all of them, in order."""
    obs_next: Any
    """The true next observation of every row: the final one where the episode ended."""
    rew: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict[str, Any]
    """What environments told about these transitions, in Gymnasium's layout (`key` and `_key`)."""
    obs: Any
    """What to act on next: after an end the first observation of the new episode, where known."""
    dummy: np.ndarray | None = None
    """Marks rows that are no transitions; None when there are none."""
    broken: np.ndarray | None = None
    """Environments that were restarted: their open episode is lost, their rows are dummies."""


class VectorEnv:
    """Gymnasium's vector environments with one meaning for all three autoreset modes.

    Args:
        env: The vector environment. Its ``metadata["autoreset_mode"]`` says how it resets.
        spec_id: What the environment is called; its registered id when not given.
    """

    synchronous = True
    """Whether every step answers for all environments."""
    can_begin = False
    """Whether single environments can `begin` anew."""

    def __init__(
        self, env: gymnasium.vector.VectorEnv[Any, Any, Any], spec_id: str | None = None
    ) -> None:
        self.env = env
        self.n_envs: int = env.num_envs
        self.observation_space: gymnasium.Space[Any] = env.single_observation_space
        self.action_space: gymnasium.Space[Any] = env.single_action_space
        self.spec_id = spec_id or (env.spec.id if env.spec else type(env.unwrapped).__name__)
        self._mode = autoreset_mode(env)
        self.can_begin = self._mode is AutoresetMode.DISABLED
        self._ended: np.ndarray | None = None  # NEXT_STEP: whose next row is a reset
        self._reuse = rows.ReuseProbe(found=getattr(env.unwrapped, "copy", True) is False)

    def reset(self, seed: int | None = None) -> Any:
        """Starts a new episode in every environment.

        Args:
            seed: Decides all that environments and `action_space` draw from here on. None lets
                their generators run on.

        Returns:
            The first observations.
        """
        self._ended = None
        self._reuse = rows.ReuseProbe(self._reuse.found)
        obs, _ = self.env.reset(seed=self._seed(seed))
        return self._reuse.settled(obs)

    def step(self, act: Any, env_ids: np.ndarray | None = None) -> Step:
        """Takes one step in every environment.

        Args:
            act: An action for each environment of the last `Step`.
            env_ids: The environments `act` is for; None is those of the last `Step`.
        """
        if env_ids is not None:
            check_all(env_ids, self.n_envs)
        obs, rew, terminated, truncated, info = self.env.step(act)
        if self._reuse.active:
            obs, rew, terminated, truncated = self._reuse.settled((obs, rew, terminated, truncated))
        if rew.dtype.kind != "f":
            rew = rew.astype(np.float32)
        done = terminated | truncated
        dummy, self._ended = self._ended, None
        obs_next = obs
        if np.count_nonzero(done):  # much cheaper than any()
            obs_next, obs, info = self._end(obs, info, done)
        return Step(None, obs_next, rew, terminated, truncated, info, obs, dummy)

    def _end(
        self, obs: Any, info: dict[str, Any], done: np.ndarray
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The next observations, those to act on, and the info of a step that ended episodes."""
        if self._mode is AutoresetMode.NEXT_STEP:
            self._ended = done
            return obs, obs, info
        if self._mode is AutoresetMode.SAME_STEP:
            final = rows.replaced(obs, np.flatnonzero(done), info["final_obs"])
            return final, obs, rows.final_info(info, done)
        final = rows.copied(obs)  # some environments reset into the array they gave
        first, _ = self.env.reset(options={"reset_mask": done})
        return final, self._reuse.settled(first) if self._reuse.active else first, info

    def begin(self, env_ids: np.ndarray, obs: Any) -> Any:
        """Breaks off the episodes of some environments, and begins new ones; see `can_begin`.

        Args:
            env_ids: Which.
            obs: The observations to act on next, of all environments.

        Returns:
            The same, with the first observations of the new episodes.
        """
        mask = np.zeros(self.n_envs, bool)
        mask[env_ids] = True
        first, _ = self.env.reset(options={"reset_mask": mask})
        return rows.replaced(obs, env_ids, first)

    def _seed(self, seed: int | None) -> Any:
        """A seed in the form that the vector environment takes."""
        if seed is None:
            return None
        *seeds, of_actions = spawn_seeds(seed, self.n_envs + 1)
        self.action_space.seed(of_actions)
        kind = type(self.env.unwrapped).__name__
        if kind in ("SyncVectorEnv", "AsyncVectorEnv"):
            return seeds
        if kind == "AtariVectorEnv":
            return np.array(seeds)
        return seeds[0]  # one generator draws for all environments

    def example(self) -> Any:
        """One of the environments, to be asked what it knows; or all, where they are but one.

        It is not to be stepped.
        """
        return getattr(self.env.unwrapped, "envs", (self.env.unwrapped,))[0]

    def render(self) -> Any:
        """A frame for each environment, for those made with a render mode."""
        return self.env.render()

    def close(self) -> None:
        """Ends all environments."""
        self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def autoreset_mode(env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """How a vector environment resets itself."""
    # The attribute first: ale-py writes its mode into a dictionary that all classes share.
    mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    if mode is None:
        raise ValueError(
            f"{env} does not say how it resets: set metadata['autoreset_mode'] to a "
            f"gymnasium.vector.AutoresetMode"
        )
    return AutoresetMode(mode)


def check_all(env_ids: np.ndarray, n_envs: int) -> None:
    """Sees that a step in lock step is for all environments, in order."""
    if not np.array_equal(env_ids, np.arange(n_envs)):
        raise ValueError(
            f"these {n_envs} environments step together, so env_ids has to be None or all of "
            f"them in order, not {np.asarray(env_ids).tolist()}"
        )


def check_spaces(spaces: Sequence[tuple[Any, Any]]) -> None:
    """Sees that environments have the same spaces, given as pairs of observation and action."""
    for i, found in enumerate(spaces):
        if found != spaces[0]:
            raise ValueError(
                f"environments of one vector need the same spaces, but environment {i} has "
                f"{found} and environment 0 has {spaces[0]}"
            )
