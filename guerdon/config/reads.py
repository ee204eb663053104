"""Which options of `collect` and `learn` a policy reads: the others have no effect."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from guerdon.config.errors import ConfigError

_INSTEAD = {
    "learn.repeat": "learn.updates_per_collect",
    "learn.updates_per_collect": "learn.repeat",
}


def unread(policy: Any) -> list[str]:
    """The dotted keys that have no effect with a policy.

    Args:
        policy: The registered class.
    """
    if not policy.on_policy:
        return ["learn.repeat"]
    ignored = [f"learn.{name}" for name in ("batch_size", "repeat") if not _takes(policy, name)]
    return ["collect.buffer_size", "collect.warmup_steps", "learn.updates_per_collect", *ignored]


def check_read(
    name: str, policy: Any, sections: Mapping[str, type[BaseModel]], said: Mapping[str, Any]
) -> None:
    """Refuses what the user says to no effect; the default may be said.

    Args:
        name: The policy's.
        policy: The registered class.
        sections: The models of the sections.
        said: What the user says, by dotted key.
    """
    idle = unread(policy)
    for key in idle:
        section, _, option = key.partition(".")
        default = sections[section].model_fields[option].default
        if said.get(key, default) != default:
            instead = _INSTEAD.get(key, key)
            fix = "leave it out" if instead in idle else f"use {instead!r}"
            raise ConfigError(f"{key!r} is {said[key]}, but {name} does not read it: {fix}")


def flat(sections: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The dotted keys of sections, and of keys that are dotted already.

    Args:
        sections: Values by section, or by dotted key.
    """
    for key, value in sections.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", item) for inner, item in value.items())
        else:
            yield key, value


def _takes(policy: Any, name: str) -> bool:
    """Whether an argument of `learn` is more than one of those that ``**_`` swallows."""
    parameters = inspect.signature(policy.learn).parameters if hasattr(policy, "learn") else {}
    swallows = any(
        parameter.kind is parameter.VAR_KEYWORD and parameter.name.startswith("_")
        for parameter in parameters.values()
    )
    return name in parameters or not swallows
