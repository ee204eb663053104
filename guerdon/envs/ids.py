"""Environment ids: which are there, which package brings them, and what was probably meant."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import load_env_creator, parse_env_id

from guerdon.extras import MissingExtraError, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gymnasium.envs.registration import EnvSpec

# Ids of these begin so, and are registered when the package is imported: (module, extra).
_REGISTERED_BY = {
    "ALE/": ("ale_py", "atari"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
}
# Gymnasium registers these itself, without the package they need.
_MUJOCO = "gymnasium.envs.mujoco"


class UnknownEnvironmentError(ValueError):
    """No environment has this id."""


def find_spec(env_id: str, imports: Iterable[str] = ()) -> EnvSpec:
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
        if str(spec.entry_point).startswith(_MUJOCO):
            require("mujoco", "mujoco")
    except MissingExtraError as error:
        raise UnknownEnvironmentError(f"there is no environment {env_id!r}: {error}") from error
    return spec


def import_modules(names: Iterable[str]) -> None:
    """Imports modules for what they register."""
    for name in names:
        importlib.import_module(name)


def resolve(env_id: str, imports: Iterable[str] = ()) -> EnvSpec | Callable[..., Any]:
    """The registration of an id, or the class that ``"package.module:Class"`` names."""
    module, _, name = env_id.rpartition(":")
    if not module:
        return find_spec(env_id, imports)
    import_modules(imports)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnknownEnvironmentError(f"there is no environment {env_id!r}: {error}") from error
    if hasattr(found, name):
        return load_env_creator(env_id)
    return find_spec(name)  # as Gymnasium has it: a module that registers an id


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
