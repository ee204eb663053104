"""Vector environments that were written as such: Gymnasium's own, ale-py's, EnvPool's."""

from __future__ import annotations

import difflib
import inspect
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from guerdon.envs.ids import UnknownEnvironmentError, unknown_argument
from guerdon.envs.seeding import spawn_seeds
from guerdon.envs.vector import VectorEnv
from guerdon.envs.wrappers import ATARI_FRAME_SKIP
from guerdon.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.envs.recipe import Recipe

_ATARI_VECTOR = "ale_py.vector_env:AtariVectorEnv"
_ATARI = "ALE/"


def why_not_native(recipe: Recipe) -> str | None:
    """What keeps a recipe from being made as a native vector environment."""
    spec = recipe.source
    if not isinstance(spec, EnvSpec):
        return "it is not a registered id"
    if recipe.settings or recipe.wrappers:
        return "environments with settings or wrappers of their own are made one by one"
    entry = spec.vector_entry_point
    if entry is None:
        return "it is registered without one"
    if recipe.atari != (entry == _ATARI_VECTOR):
        return "ale-py's gives preprocessed frames (env.atari) and nothing else"
    if recipe.frame_stack > 1 and not recipe.atari:
        return "it stacks no frames"
    if "jax" in str(entry).lower():
        return "it needs jax"
    limit = {} if spec.max_episode_steps is None else {"max_episode_steps": 0}  # Gymnasium's own
    return _unknown_arguments(entry, {**limit, **_arguments(recipe), **recipe.kwargs})


def may_never_end(recipe: Recipe) -> bool:
    """Whether a native vector environment would go on where others are truncated."""
    if recipe.atari:  # which has a limit in any case
        return False
    return _default_limit(recipe) is not None and not _takes_limit(recipe)


def _default_limit(recipe: Recipe) -> int | None:
    """The limit of an environment that has no other."""
    assert isinstance(recipe.source, EnvSpec)
    others = (recipe.max_episode_steps, recipe.source.max_episode_steps)
    return recipe.default_limit if others == (None, None) else None


def _takes_limit(recipe: Recipe) -> bool:
    assert isinstance(recipe.source, EnvSpec)
    return "max_episode_steps" in _parameters(recipe.source.vector_entry_point)


def _parameters(entry: Any) -> Mapping[str, inspect.Parameter]:
    creator = entry if callable(entry) else load_env_creator(entry)
    return inspect.signature(creator).parameters


def _unknown_arguments(entry: Any, kwargs: dict[str, Any]) -> str | None:
    parameters = _parameters(entry)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    unknown = [name for name in kwargs if name not in parameters]
    return f"it has no argument {unknown[0]!r}" if unknown else None


def make_native(recipe: Recipe, n_envs: int) -> VectorEnv:
    """The vector environment that an id is registered with."""
    reason = why_not_native(recipe)
    if reason:
        raise ValueError(
            f"{recipe.name!r} has no native vector environment here: {reason}; use backend 'base'"
        )
    assert isinstance(recipe.source, EnvSpec)
    kwargs = {**_arguments(recipe), **recipe.kwargs}
    env = gymnasium.make_vec(
        recipe.source, n_envs, vectorization_mode="vector_entry_point", **kwargs
    )
    return VectorEnv(env, recipe.name)


def _arguments(recipe: Recipe) -> dict[str, Any]:
    limit = recipe.max_episode_steps
    if not recipe.atari:
        if limit is None and _takes_limit(recipe):
            limit = _default_limit(recipe)
        return {} if limit is None else {"max_episode_steps": limit}
    arguments: dict[str, Any] = {
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "reward_clipping": False,  # ale-py would clip; buffers hold what the game paid
        "stack_num": recipe.frame_stack,
        "frameskip": ATARI_FRAME_SKIP,
    }
    if limit is not None:
        arguments["max_num_frames_per_episode"] = limit * ATARI_FRAME_SKIP
    return arguments


class EnvPoolVectorEnv(VectorEnv):
    """The ``envpool`` backend. A reset with a seed makes the pool anew: it takes seeds only then.

    Args:
        recipe: With an id that EnvPool has, and nothing that it cannot do.
        n_envs: How many.
    """

    def __init__(self, recipe: Recipe, n_envs: int) -> None:
        if recipe.settings or recipe.wrappers or (recipe.frame_stack > 1 and not recipe.atari):
            raise ValueError("EnvPool takes no settings, wrappers or frame_stack: use 'subprocess'")
        self._name, self._arguments = _pool_arguments(recipe)
        super().__init__(_make_pool(self._name, n_envs, self._arguments), recipe.name)

    def reset(self, seed: int | None = None) -> Any:
        """Starts a new episode in every environment."""
        if seed is not None:
            *seeds, of_actions = spawn_seeds(seed, self.n_envs + 1)
            self.env.close()
            self.env = _make_pool(self._name, self.n_envs, {**self._arguments, "seed": seeds})
            self.action_space.seed(of_actions)
        return super().reset()


def _pool_arguments(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    arguments: dict[str, Any] = {}
    if recipe.max_episode_steps is not None:
        arguments["max_episode_steps"] = recipe.max_episode_steps
    if recipe.atari:
        arguments["stack_num"] = recipe.frame_stack
    if recipe.name.startswith(_ATARI):  # the same task as under this id elsewhere
        arguments["repeat_action_probability"] = 0.25
    return recipe.name.removeprefix(_ATARI), {**arguments, **recipe.kwargs}


def _make_pool(name: str, n_envs: int, arguments: dict[str, Any]) -> Any:
    envpool = require("envpool", "envpool")
    known = envpool.list_all_envs()
    if name not in known:
        nearest = difflib.get_close_matches(name, known)
        raise UnknownEnvironmentError(f"EnvPool has no {name!r}; the nearest it has: {nearest}")
    with warnings.catch_warnings():  # its spaces are rounded to float32
        warnings.filterwarnings("ignore", ".*precision lowered", UserWarning)
        try:
            pool = envpool.make_gymnasium(name, num_envs=n_envs, **arguments)
        except TypeError as error:
            options = envpool.make_spec(name).config._fields
            unknown = [argument for argument in arguments if argument not in options]
            if not unknown:
                raise
            raise unknown_argument(f"EnvPool's {name!r}", unknown[0], options) from error
        _ = pool.single_observation_space, pool.single_action_space  # they are made when asked for
        return pool
