"""Vector environments of other packages: Gymnasium's, ale-py's and EnvPool's."""

import difflib
import inspect
import warnings
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from guerdon.envs.factory import ATARI_FRAME_SKIP, EnvFactory
from guerdon.envs.ids import UnknownEnvironmentError, unknown_argument
from guerdon.envs.vector import VectorEnv
from guerdon.extras import require

_ATARI_VECTOR = "ale_py.vector_env:AtariVectorEnv"
_ATARI = "ALE/"


class NotNativeError(ValueError):
    """Raised if there is no native vector environment for some arguments."""


def make_native(factory: EnvFactory, n_envs: int, *, auto: bool = False) -> VectorEnv:
    """Make the registered vector environment of an id.

    Args:
        factory: Arguments of the environments.
        n_envs: Number of environments.
        auto: Whether to reject one that does not support the default time limit.
    """
    reason = _why_not(factory, auto)
    if reason:
        raise NotNativeError(
            f"{factory.name!r} has no native vector environment here: {reason}; use backend 'base'"
        )
    spec: Any = factory.source
    kwargs = {**_arguments(factory), **factory.kwargs}
    env = gymnasium.make_vec(spec, n_envs, vectorization_mode="vector_entry_point", **kwargs)
    return VectorEnv(env, factory.name)


def _why_not(factory: EnvFactory, auto: bool) -> str | None:
    spec = factory.source
    if not isinstance(spec, EnvSpec):
        return "it is not a registered id"
    if factory.settings or factory.wrappers:
        return "settings and wrappers need single environments"
    entry = spec.vector_entry_point
    if entry is None:
        return "none is registered"
    if factory.atari != (entry == _ATARI_VECTOR):
        return "ale-py's supports only preprocessed frames (env.atari)"
    if factory.frame_stack > 1 and not factory.atari:
        return "it cannot stack frames"
    if "jax" in str(entry).lower():
        return "it needs jax"
    parameters = _parameters(spec)
    names = [*_arguments(factory), *factory.kwargs]
    if spec.max_episode_steps is not None:
        names.append("max_episode_steps")  # passed by Gymnasium
    unknown = [name for name in names if name not in parameters]
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return f"it has no argument {unknown[0]!r}"
    endless = _default_limit(factory) is not None and "max_episode_steps" not in parameters
    return "it has no time limit" if auto and endless else None


def _parameters(spec: EnvSpec) -> Any:
    entry: Any = spec.vector_entry_point
    return inspect.signature(entry if callable(entry) else load_env_creator(entry)).parameters


def _default_limit(factory: EnvFactory) -> int | None:
    """Return the default time limit if no other applies; ale-py has its own."""
    spec: Any = factory.source
    limited = factory.atari or factory.max_episode_steps or spec.max_episode_steps
    return None if limited else factory.default_limit


def _arguments(factory: EnvFactory) -> dict[str, Any]:
    spec: Any = factory.source
    limit = factory.max_episode_steps
    if not factory.atari:
        if "max_episode_steps" in _parameters(spec):
            limit = limit or _default_limit(factory)
        return {} if limit is None else {"max_episode_steps": limit}
    arguments: dict[str, Any] = {
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "reward_clipping": False,  # buffers store the unclipped reward
        "stack_num": factory.frame_stack,
        "frameskip": ATARI_FRAME_SKIP,
    }
    if limit is not None:
        arguments["max_num_frames_per_episode"] = limit * ATARI_FRAME_SKIP
    return arguments


class EnvPoolVectorEnv(VectorEnv):
    """The ``envpool`` backend. EnvPool is seeded on construction: a seeded reset remakes the pool.

    Args:
        factory: Arguments of the environments, with an EnvPool id.
        n_envs: Number of environments.
    """

    def __init__(self, factory: EnvFactory, n_envs: int) -> None:
        if factory.settings or factory.wrappers or (factory.frame_stack > 1 and not factory.atari):
            raise ValueError("EnvPool has no settings, wrappers or frame_stack: use 'subprocess'")
        self._arguments: dict[str, Any] = {"num_envs": n_envs}
        if factory.max_episode_steps is not None:
            self._arguments["max_episode_steps"] = factory.max_episode_steps
        if factory.atari:
            self._arguments["stack_num"] = factory.frame_stack
        if factory.name.startswith(_ATARI):  # the same task as with other backends
            self._arguments["repeat_action_probability"] = 0.25
        self._name = factory.name.removeprefix(_ATARI)
        self._arguments |= factory.kwargs
        super().__init__(_make_pool(self._name, self._arguments), factory.name)

    def reset(self, seed: int | None = None) -> Any:
        """Start a new episode in every environment; see `VectorEnv.reset`."""
        seeds = self._seeds(seed)
        if seed is not None:
            self.env.close()
            self.env = _make_pool(self._name, {**self._arguments, "seed": seeds})
        return super().reset()


def _make_pool(name: str, arguments: dict[str, Any]) -> Any:
    envpool = require("envpool", "envpool")
    known = envpool.list_all_envs()
    if name not in known:
        nearest = difflib.get_close_matches(name, known)
        raise UnknownEnvironmentError(f"EnvPool has no {name!r}; similar ids: {nearest}")
    with warnings.catch_warnings():  # its spaces are rounded to float32
        warnings.filterwarnings("ignore", ".*precision lowered", UserWarning)
        try:
            pool = envpool.make_gymnasium(name, **arguments)
        except TypeError as error:
            options = envpool.make_spec(name).config._fields
            unknown = [argument for argument in arguments if argument not in options]
            if not unknown:
                raise
            raise unknown_argument(f"EnvPool's {name!r}", unknown[0], options) from error
        _ = pool.single_observation_space, pool.single_action_space  # made on first access
        return pool
