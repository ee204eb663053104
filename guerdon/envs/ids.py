"""Environment ids: which are there, which package brings them, and what was probably meant."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import load_env_creator, parse_env_id

from guerdon.extras import MissingExtraError, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gymnasium.envs.registration import EnvSpec

# Ids of these begin so, and are registered when the package is imported: (module, extra).
_REGISTERED_BY = {
    "ALE/": ("ale_py", "atari"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    **dict.fromkeys(
        ("PushCube-", "PickCube-", "PullCube-", "StackCube-", "LiftPegUpright-"),
        ("mani_skill", "maniskill"),
    ),
    **dict.fromkeys(
        ("Fetch", "HandReach", "HandManipulate", "PointMaze_", "AntMaze_", "AdroitHand"),
        ("gymnasium_robotics", "robotics"),
    ),
}
# What these packages register is made in another way: the function that says in which.
_ADAPTED_BY = {
    "mani_skill": "guerdon.envs.maniskill:maniskill_spec",
    "gymnasium_robotics": "guerdon.envs.cameras:camera_spec",
}
# Gymnasium registers these itself, without the package they need.
_NEEDED_BY = {
    "gymnasium.envs.box2d": ("Box2D", "box2d"),
    "gymnasium.envs.mujoco": ("mujoco", "mujoco"),
}


class UnknownEnvironmentError(ValueError):
    """No environment has this id."""


class UnusableEnvironmentError(ValueError):
    """An environment cannot be made in the way that was asked for."""


def find_spec(env_id: str, imports: Sequence[str] = ()) -> EnvSpec:
    """The registration of an environment.

    Args:
        env_id: Its Gymnasium id.
        imports: Modules that register environments when they are imported.
    """
    import_modules(imports)
    try:
        for prefix, (module, extra) in _REGISTERED_BY.items():
            if env_id.startswith(prefix):
                require(module, extra)
        spec = gymnasium.registry.get(env_id)
        if spec is None:
            raise UnknownEnvironmentError(_not_there(env_id))
        for entry, (module, extra) in _NEEDED_BY.items():
            if str(spec.entry_point).startswith(entry):
                require(module, extra)
    except MissingExtraError as error:
        raise UnknownEnvironmentError(f"there is no environment {env_id!r}: {error}") from error
    return _adapted(spec)


# `guerdon.config` is imported where it is needed: every process of an environment imports this
# module, and would take several times as long to start.


def import_modules(names: Sequence[str]) -> None:
    """Imports modules for what they register."""
    if names:
        from guerdon.config.imports import import_all

        import_all(names, "env.imports")


def find_wrapper(name: str) -> Callable[..., Any]:
    """The class or function that ``"package.module:Class"`` names."""
    from guerdon.config.imports import find_object

    found = find_object(name, "env.wrappers")
    if not callable(found):
        raise UnusableEnvironmentError(
            f"'env.wrappers' has {name!r}, which is a {type(found).__name__}: name a class or "
            f"function that takes an environment and gives one"
        )
    return found  # type: ignore[no-any-return]


def registered_limit(env_id: str) -> int | None:
    """The most steps that an episode of a registered environment has, where there is a limit."""
    spec = gymnasium.registry.get(env_id)
    return spec.max_episode_steps if spec else None


def resolve(env_id: str, imports: Sequence[str] = ()) -> EnvSpec | Callable[..., Any]:
    """The registration of an id, or the class of ``package.module:Class`` or ``file.py:Class``."""
    module, _, name = env_id.rpartition(":")
    if not module:
        return find_spec(env_id, imports)
    import_modules(imports)
    if module.endswith(".py"):
        from guerdon.config.imports import find_object

        return find_object(env_id, "env.id")  # type: ignore[no-any-return]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnknownEnvironmentError(f"there is no environment {env_id!r}: {error}") from error
    if hasattr(found, name):
        return load_env_creator(env_id)
    return find_spec(name)  # as Gymnasium has it: a module that registers an id


def unknown_argument(maker: str, argument: str, known: Iterable[str]) -> UnusableEnvironmentError:
    """The error for an argument that an environment does not have.

    Args:
        maker: Who does not have it.
        argument: What was given.
        known: Those it has.
    """
    from guerdon.config.errors import suggestion

    return UnusableEnvironmentError(
        f"{maker} has no argument {argument!r}: {suggestion(argument, known)}"
    )


def _adapted(spec: EnvSpec) -> EnvSpec:
    entry: Any = spec.entry_point
    module = (
        entry
        if isinstance(entry, str)
        else getattr(getattr(entry, "func", entry), "__module__", "")
    )
    adapter = _ADAPTED_BY.get(module.partition(".")[0])
    if adapter is None:
        return spec
    adapt: Any = load_env_creator(adapter)
    return adapt(spec)  # type: ignore[no-any-return]


def _not_there(env_id: str) -> str:
    nearest = _nearest(env_id)
    guess = f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else "."
    return (
        f"there is no environment {env_id!r}{guess} An environment of your own is written "
        f"'package.module:Class', or registered by a module named in env.imports."
    )


def _nearest(env_id: str) -> list[str]:
    """Registered ids that look alike: first other versions of the same name."""
    by_lower = {known.lower(): known for known in gymnasium.registry}
    name = env_id.lower().rsplit("-v", 1)[0]
    same = [known for lower, known in by_lower.items() if lower.rsplit("-v", 1)[0] == name]
    if same:
        return sorted(same, key=lambda known: -(parse_env_id(known)[2] or 0))[:3]
    return [by_lower[lower] for lower in difflib.get_close_matches(env_id.lower(), by_lower)]
