"""Environment ids: their registrations, the packages that register them, and near misses."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from guerdon.extras import MissingExtraError, require

# Prefixes of ids that are registered when a package is imported: (module, extra).
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
# Functions that replace the registrations of a package.
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
    """An environment cannot be made with these arguments."""


# `guerdon.config` is imported where it is needed: every process of an environment imports this
# module, and would take several times as long to start.


def find_wrapper(name: str) -> Callable[..., Any]:
    """Return the class or function that ``"package.module:Class"`` names."""
    from guerdon.config.imports import find_object

    found: Callable[..., Any] = find_object(name, "env.wrappers")
    if not callable(found):
        raise UnusableEnvironmentError(
            f"'env.wrappers' has {name!r}, which is a {type(found).__name__}: name a class or "
            f"function that takes an environment and returns one"
        )
    return found


def registered_limit(env_id: str) -> int | None:
    """Return the time limit that an id is registered with, if any."""
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])  # of ``module:id``
    return spec.max_episode_steps if spec else None


def resolve(env_id: str, imports: Sequence[str] = ()) -> EnvSpec | Callable[..., Any]:
    """Return the registration of an id, or the class of ``module:Class`` or ``file.py:Class``.

    Args:
        env_id: A Gymnasium id, or a name of a class.
        imports: Modules that register environments when they are imported.
    """
    if imports:
        from guerdon.config.imports import import_all

        import_all(imports, "env.imports")
    module, _, name = env_id.rpartition(":")
    if not module:
        return find_spec(env_id)
    from guerdon.config.imports import find_object

    # As in Gymnasium, the module may also be one that registers an id.
    return find_object(env_id, "env.id", gymnasium.registry) or find_spec(name)


def find_spec(env_id: str) -> EnvSpec:
    """Return the registration of a Gymnasium id."""
    try:
        for prefix, (module, extra) in _REGISTERED_BY.items():
            if env_id.startswith(prefix):
                require(module, extra)
        spec = gymnasium.registry.get(env_id)
        if spec is None:
            known = {each.lower(): each for each in gymnasium.registry}
            near = [repr(known[each]) for each in difflib.get_close_matches(env_id.lower(), known)]
            guess = f"; did you mean {' or '.join(near)}?" if near else "."
            raise UnknownEnvironmentError(
                f"there is no environment {env_id!r}{guess} An environment of your own is written "
                f"'package.module:Class', or registered by a module named in env.imports."
            )
        for entry, (module, extra) in _NEEDED_BY.items():
            if str(spec.entry_point).startswith(entry):
                require(module, extra)
    except MissingExtraError as error:
        raise UnknownEnvironmentError(f"there is no environment {env_id!r}: {error}") from error
    creator: Any = spec.entry_point
    creator = getattr(creator, "func", creator)
    name = creator if isinstance(creator, str) else getattr(creator, "__module__", "")
    adapter = _ADAPTED_BY.get(name.partition(".")[0])
    adapt: Any = load_env_creator(adapter) if adapter else lambda spec: spec
    return adapt(spec)  # type: ignore[no-any-return]


def unknown_argument(maker: str, argument: str, known: Iterable[str]) -> UnusableEnvironmentError:
    """Return the error for an argument that an environment does not have.

    Args:
        maker: What was called.
        argument: Name of the argument.
        known: Names of the arguments it has.
    """
    from guerdon.config.errors import suggestion

    return UnusableEnvironmentError(
        f"{maker} has no argument {argument!r}: {suggestion(argument, known)}"
    )
