"""`EnvFactory`: makes the environments of a vector, in this process or another."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
from gymnasium import Space, spaces, wrappers
from gymnasium.envs.registration import EnvSpec, load_env_creator

from guerdon.envs.checks import reason_of, space_fault
from guerdon.envs.ids import UnusableEnvironmentError, unknown_argument
from guerdon.extras import require

ATARI_FRAME_SKIP = 4
ATARI_FRAME_STACK = 4

AnyEnv = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class EnvFactory:
    """Arguments of `make_vec` for single environments."""

    name: str
    source: EnvSpec | Callable[..., AnyEnv]
    """A registration (which other processes may lack), or a callable that makes one environment."""
    takes_setting: bool = False
    """Whether settings are the first argument of `source`; otherwise they override `kwargs`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    settings: Sequence[Any] = ()
    wrappers: Sequence[Callable[[AnyEnv], AnyEnv]] = ()
    max_episode_steps: int | None = None
    default_limit: int | None = None
    frame_stack: int = 1
    atari: bool = False

    def build(self, index: int) -> AnyEnv:
        """Make the environment with this index."""
        env = self._bare(self.settings[index % len(self.settings)] if self.settings else None)
        _check(env, repr(self.name))
        if self.atari:
            # Unlike ale-py's vector environment, this does not press FIRE at the start.
            require("cv2", "atari")
            env = wrappers.AtariPreprocessing(env, frame_skip=ATARI_FRAME_SKIP)
        limit = None if self._limited_by_gymnasium else self.max_episode_steps
        if self.max_episode_steps is None and not (env.spec and env.spec.max_episode_steps):
            limit = self.default_limit
        if limit is not None:
            env = wrappers.TimeLimit(env, limit)
        for wrapper in self.wrappers:
            name = f"the wrapper {getattr(wrapper, '__name__', wrapper)}"
            with _explained(name, wrapper, env):
                env = wrapper(env)
            _check(env, name)
        if self.frame_stack > 1:
            env = wrappers.FrameStackObservation(env, self.frame_stack, padding_type="zero")
        space = env.observation_space
        if _has_tuple(space):
            env = wrappers.TransformObservation(env, partial(_named, space), _named_space(space))
        return env

    @property
    def _limited_by_gymnasium(self) -> bool:
        """Whether `gymnasium.make` limits episodes; for raw Atari it would count skipped frames."""
        return isinstance(self.source, EnvSpec) and not self.atari

    def _bare(self, setting: Any) -> AnyEnv:
        name, source, args = repr(self.name), self.source, []
        kwargs = dict(self.kwargs)
        if self.takes_setting and setting is not None:
            args = [setting]
        else:
            kwargs |= setting or {}
        if not isinstance(source, EnvSpec):
            with _explained(name, source, *args, **kwargs):
                return source(*args, **kwargs)
        if self.atari:
            kwargs["frameskip"] = 1
        limit = self.max_episode_steps if self._limited_by_gymnasium else None
        with _explained(name, source.entry_point, **{**source.kwargs, **kwargs}):
            return gymnasium.make(source, limit, disable_env_checker=True, **kwargs)


@contextmanager
def _explained(name: str, creator: Any, /, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Raise `UnusableEnvironmentError` for wrong arguments and missing packages."""
    try:
        yield
    except TypeError as error:
        signature = inspect.signature(
            load_env_creator(creator) if isinstance(creator, str) else creator
        )
        # The signature is not enough: a creator may pass its arguments on.
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected and unexpected[1] in kwargs:
            parameters = signature.parameters.values()
            known = [one.name for one in parameters if one.kind != one.VAR_KEYWORD]
            raise unknown_argument(name, unexpected[1], known) from error
        try:
            signature.bind(*args, **kwargs)
        except TypeError as misfit:
            raise UnusableEnvironmentError(
                f"{name} cannot be made with these arguments: {misfit}"
            ) from error
        raise
    except (ImportError, gymnasium.error.Error) as error:
        raise UnusableEnvironmentError(f"{name} cannot be made: {error}") from error
    except (OSError, StopIteration, SystemExit) as error:
        raise UnusableEnvironmentError(f"{name} cannot be made: {reason_of(error)}") from error


def _check(env: Any, maker: str) -> None:
    if not isinstance(env, gymnasium.Env):
        raise UnusableEnvironmentError(
            f"{maker} made a {type(env).__name__}, which is not a gymnasium.Env"
        )
    for name in ("observation_space", "action_space"):
        with _explained(maker, lambda: None):  # it may be a property
            space = getattr(env, name, None)
        if (fault := space_fault(space, name)) is not None:
            raise UnusableEnvironmentError(f"{maker} cannot be used: its {fault}")


# --- tuples in observations become dictionaries with the keys "0", "1", ...


def _has_tuple(space: Space[Any]) -> bool:
    if isinstance(space, spaces.Dict):
        return any(map(_has_tuple, space.spaces.values()))
    return isinstance(space, spaces.Tuple)


def _named_space(space: Space[Any]) -> Space[Any]:
    if not _has_tuple(space):
        return space
    # A list of pairs, since Gymnasium sorts dictionaries.
    return spaces.Dict([(str(key), _named_space(part)) for key, part in _parts(space)])


def _named(space: Space[Any], observation: Any) -> Any:
    if not _has_tuple(space):
        return observation
    return {str(key): _named(part, observation[key]) for key, part in _parts(space)}


def _parts(space: Any) -> Any:
    parts = space.spaces
    return parts.items() if isinstance(space, spaces.Dict) else enumerate(parts)
