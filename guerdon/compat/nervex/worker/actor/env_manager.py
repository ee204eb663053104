"""nerveX's environment managers, over guerdon's vector environments."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from guerdon.compat.nervex.gym_adapter import BaseEnvTimestep, make_seeded
from guerdon.compat.nervex.torch_utils import row, to_ndarray, to_tensor
from guerdon.envs.make import Backend, make_vec
from guerdon.envs.vector import Step, batched, transition

_tensor = partial(to_tensor, dtype=torch.float32)


class BaseEnvManager:
    """Environments that step one after the other, by number; those that end are reset at once.

    Call `launch` first, then `step` with actions for some of `next_obs`, which leaves out
    environments that have played `episode_num` episodes. `env_fn` makes an environment with
    nerveX's or Gymnasium's interface from one of the settings `env_cfg`. In `manager_cfg`,
    ``wait_num`` is the number of results that a step of `SubprocessEnvManager` waits for.
    """

    backend: ClassVar[Backend] = "base"

    def __init__(
        self,
        env_fn: Callable[..., Any],
        env_cfg: Sequence[Any],
        env_num: int,
        episode_num: float | str = "inf",
        manager_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        self.env_num = env_num
        self.wait_num = min(int((manager_cfg or {}).get("wait_num", 2)), env_num)
        self._env_fn, self._env_cfg = env_fn, self._one_each(env_cfg, "settings")
        self._episode_num = float(episode_num)
        self._seeds: list[Any] = [None] * env_num
        self._vector: Any = None

    def _one_each(self, given: Sequence[Any], what: str) -> list[Any]:
        if len(given) != self.env_num:
            raise ValueError(f"there are {len(given)} {what} for {self.env_num} environments")
        return list(given)

    def seed(self, seed: int | Sequence[int]) -> None:
        """Seed the environments at the next `launch`: one seed each, or consecutive ones."""
        seeds = range(seed, seed + self.env_num) if isinstance(seed, int) else seed
        self._seeds = self._one_each(seeds, "seeds")

    def launch(self) -> None:
        """Make the environments, and start an episode in each."""
        if self._vector is not None:
            raise RuntimeError("the environments are running: close() them first")
        settings = list(zip(self._env_cfg, self._seeds, strict=True))
        self._vector = make_vec(
            partial(make_seeded, self._env_fn), self.env_num,
            backend=self.backend, settings=settings, wait_num=self.wait_num,
        )  # fmt: skip
        self.reset()

    def reset(self) -> None:
        """Start a new episode in every environment."""
        obs = self._open().reset()
        self._obs = {number: row(obs, number) for number in range(self.env_num)}
        self._episodes = [0] * self.env_num

    @property
    def next_obs(self) -> dict[int, Any]:
        """Observations that need an action, as tensors, by the number of the environment."""
        return {i: _tensor(obs) for i, obs in self._obs.items() if not self._finished(i)}

    @property
    def done(self) -> bool:
        """Whether every environment has played its episodes."""
        return all(map(self._finished, range(self.env_num)))

    def _finished(self, number: int) -> bool:
        return self._episodes[number] >= self._episode_num

    def step(self, action: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step the environments of some numbers, which `action` has.

        Returns observation, reward [1] (tensors), ``done`` and info by number; of subprocesses,
        those that are ready.
        """
        shape, timesteps = self._open().action_space.shape, {}
        ids, step = self._stepped({i: np.reshape(to_ndarray(a), shape) for i, a in action.items()})
        for k, i in enumerate(ids):
            self._obs[i] = row(step.obs, k)
            if step.dummy is not None and step.dummy[k]:  # it was restarted
                continue
            done = bool(step.terminated[k] or step.truncated[k])
            self._episodes[i] += done
            there = [key for key in step.info if step.info.get(f"_{key}", [False] * (k + 1))[k]]
            info = {key: _tensor(row(step.info[key], k)) for key in there}
            obs, reward = _tensor(row(step.obs_next, k)), torch.tensor([float(step.rew[k])])
            timesteps[i] = BaseEnvTimestep(obs, reward, done, info)
        return timesteps

    def _stepped(self, actions: dict[int, Any]) -> tuple[list[int], Step]:
        """Return the environments that are ready, and their rows."""
        rows = [transition(self._vector.envs[i], action, i) for i, action in actions.items()]
        return [*actions], batched(self._vector.observation_space, rows, [*actions])

    def env_info(self) -> Any:
        """Return the `info` of an environment."""
        env = self._env_fn(self._env_cfg[0])
        try:
            return env.info()
        finally:
            env.close()

    def close(self) -> None:
        """Close the environments."""
        if self._vector is not None:
            self._vector.close()
            self._vector = None

    def _open(self) -> Any:
        if self._vector is None:
            raise RuntimeError("the environments are not running: launch() them first")
        return self._vector


class SubprocessEnvManager(BaseEnvManager):
    """Environments in processes of their own; a step returns when some are ready."""

    backend = "async_subprocess"

    def _stepped(self, actions: dict[int, Any]) -> tuple[list[int], Step]:
        for i in actions:
            del self._obs[i]  # until it is ready
        step = self._vector.step(np.stack(list(actions.values())), np.array(list(actions)))
        return step.env_ids.tolist(), step


class SyncSubprocessEnvManager(SubprocessEnvManager):
    """Environments in processes of their own; a step returns when all that stepped are ready."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wait_num = self.env_num
