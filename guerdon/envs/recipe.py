"""`Recipe`: all it takes to make the environments of a vector, here or in another process."""

from __future__ import annotations

import inspect
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from guerdon.envs import wrappers
from guerdon.envs.ids import UnusableEnvironmentError, unknown_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from guerdon.envs.wrappers import AnyEnv

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


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
        _check(env, repr(self.name))
        if self.atari:
            env = wrappers.atari_frames(env)
        if self.max_episode_steps is not None and not self._limited:
            env = wrappers.time_limit(env, self.max_episode_steps)
        elif self.default_limit is not None and not _has_limit(env):
            env = wrappers.time_limit(env, self.default_limit)
        for wrapper in self.wrappers:
            name = f"the wrapper {getattr(wrapper, '__name__', wrapper)}"
            with _in_a_sentence(name, wrapper, (env,), {}):
                env = wrapper(env)
            _check(env, name)
        if self.frame_stack > 1:
            env = wrappers.frame_stack(env, self.frame_stack)
        return wrappers.named_parts(env)

    @property
    def _limited(self) -> bool:
        """Whether `gymnasium.make` limits episodes; on raw Atari it would count skipped frames."""
        return isinstance(self.source, EnvSpec) and not self.atari

    def _bare(self, setting: Any) -> AnyEnv:
        name = repr(self.name)
        if self.takes_setting and setting is not None:
            assert not isinstance(self.source, EnvSpec)
            with _in_a_sentence(name, self.source, (setting,), self.kwargs):
                return self.source(setting, **self.kwargs)
        kwargs = {**self.kwargs, **(setting or {})}
        if not isinstance(self.source, EnvSpec):
            with _in_a_sentence(name, self.source, (), kwargs):
                return self.source(**kwargs)
        if self.atari:
            kwargs["frameskip"] = 1
        limit = self.max_episode_steps if self._limited else None
        with _in_a_sentence(name, self.source.entry_point, (), {**self.source.kwargs, **kwargs}):
            return gymnasium.make(self.source, limit, disable_env_checker=True, **kwargs)


@contextmanager
def _in_a_sentence(name: str, creator: Any, args: Args, kwargs: Kwargs) -> Iterator[None]:
    """Tells arguments that a creator does not take, and packages that it lacks, as such."""
    try:
        yield
    except TypeError as error:
        misfit = _misfit(str(error), name, creator, args, kwargs)
        if misfit is None:
            raise
        raise misfit from error
    except (ImportError, gymnasium.error.Error) as error:
        raise UnusableEnvironmentError(f"{name} cannot be made: {error}") from error


def _misfit(
    error: str, name: str, creator: Any, args: Args, kwargs: Kwargs
) -> UnusableEnvironmentError | None:
    """What is wrong with the arguments, if it is they that an error is about."""
    signature = inspect.signature(
        load_env_creator(creator) if isinstance(creator, str) else creator
    )
    # Not by the signature alone: a creator may hand its arguments on.
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", error)
    if unexpected and unexpected[1] in kwargs:
        known = [one.name for one in signature.parameters.values() if one.kind != one.VAR_KEYWORD]
        return unknown_argument(name, unexpected[1], known)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as misfit:
        return UnusableEnvironmentError(f"{name} cannot be made with these arguments: {misfit}")
    return None


def _check(env: Any, maker: str) -> None:
    if not isinstance(env, gymnasium.Env):
        raise UnusableEnvironmentError(
            f"{maker} made a {type(env).__name__}, which is no gymnasium.Env"
        )


def _has_limit(env: AnyEnv) -> bool:
    return env.spec is not None and env.spec.max_episode_steps is not None
