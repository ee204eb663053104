"""Environment ids: registrations, packages that register them, and similar names."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from guerdon.extras import MissingExtraError, require

# Prefixes of ids that a package registers when it is imported: (module, extra).
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
# Gymnasium registers these without the package they need.
_NEEDED_BY = {
    "gymnasium.envs.box2d": ("Box2D", "box2d"),
    "gymnasium.envs.mujoco": ("mujoco", "mujoco"),
}


class UnknownEnvironmentError(ValueError):
    """Raised if no environment has an id."""


class UnusableEnvironmentError(ValueError):
    """Raised if an environment cannot be made with its arguments."""


# `guerdon.config` is imported lazily: every environment process imports this module, and would
# take several times as long to start.


def find_wrapper(name: str) -> Callable[..., Any]:
    """Return the class or function of ``"package.module:Class"``."""
    from guerdon.config.imports import find_object

    found: Callable[..., Any] = find_object(name, "env.wrappers")
    if not callable(found):
        raise UnusableEnvironmentError(
            f"'env.wrappers' has {name!r}, which is a {type(found).__name__}: give a class or "
            f"function that takes an environment and returns one"
        )
    return found


def registered_limit(env_id: str) -> int | None:
    """Return the registered time limit of an id, if any."""
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])  # also for ``module:id``
    return spec.max_episode_steps if spec else None


def resolve(env_id: str, imports: Sequence[str] = ()) -> EnvSpec | Callable[..., Any]:
    """Return the registration of an id, or the class of ``module:Class`` or ``file.py:Class``.

    Args:
        env_id: A Gymnasium id, or the name of a class.
        imports: Modules that register environments when imported.
    """
    if imports:
        from guerdon.config.imports import import_all

        import_all(imports, "env.imports")
    module, _, name = env_id.rpartition(":")
    if not module:
        return find_spec(env_id)
    from guerdon.config.imports import find_object

    # As in Gymnasium, the module may also register an id.
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
                f"there is no environment {env_id!r}{guess} Your own environment is given as "
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
    """Return the error for an unknown argument of an environment.

    Args:
        maker: Name of the called function or class.
        argument: Name of the argument.
        known: Names of the known arguments.
    """
    from guerdon.config.errors import suggestion

    return UnusableEnvironmentError(
        f"{maker} has no argument {argument!r}: {suggestion(argument, known)}"
    )
