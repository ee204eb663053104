"""`Recipe`: all it takes to make the environments of a vector, here or in another process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from guerdon.envs import wrappers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guerdon.envs.wrappers import AnyEnv


@dataclass(frozen=True)
class Recipe:
    """How to make each environment of a vector; what is not described is as in `make_vec`."""

    name: str
    source: EnvSpec | Callable[..., AnyEnv]
    """A registration (other processes may not have it), or what makes one environment."""
    takes_setting: bool = False
    """Whether `source` takes a setting as its first argument; else it overrides `kwargs`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    settings: Sequence[Any] = ()
    wrappers: Sequence[Callable[[AnyEnv], AnyEnv]] = ()
    max_episode_steps: int | None = None
    default_limit: int | None = None
    frame_stack: int = 1
    atari: bool = False

    def build(self, index: int) -> AnyEnv:
        """Makes the environment with this number."""
        env = self._bare(self.settings[index % len(self.settings)] if self.settings else None)
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"{self.name!r} made a {type(env).__name__}, which is no gymnasium.Env")
        if self.atari:
            env = wrappers.atari_frames(env)
        if self.max_episode_steps is not None and not self._limited:
            env = wrappers.time_limit(env, self.max_episode_steps)
        elif self.default_limit is not None and not _has_limit(env):
            env = wrappers.time_limit(env, self.default_limit)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return wrappers.frame_stack(env, self.frame_stack) if self.frame_stack > 1 else env

    @property
    def _limited(self) -> bool:
        """Whether `gymnasium.make` limits episodes; on raw Atari it would count skipped frames."""
        return isinstance(self.source, EnvSpec) and not self.atari

    def _bare(self, setting: Any) -> AnyEnv:
        if self.takes_setting and setting is not None:
            assert not isinstance(self.source, EnvSpec)
            return self.source(setting, **self.kwargs)
        kwargs = {**self.kwargs, **(setting or {})}
        if not isinstance(self.source, EnvSpec):
            return self.source(**kwargs)
        if self.atari:
            kwargs["frameskip"] = 1
        limit = self.max_episode_steps if self._limited else None
        return gymnasium.make(self.source, limit, disable_env_checker=True, **kwargs)


def _has_limit(env: AnyEnv) -> bool:
    return env.spec is not None and env.spec.max_episode_steps is not None
