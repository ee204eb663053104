"""guerdon: reinforcement learning for people whose reward has to be learned."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guerdon.entry import train
    from guerdon.training.replay import evaluate_run, load_policy

__version__ = "0.1.0"
__all__ = ["evaluate_run", "load_policy", "train"]

# Imported when asked for: torch and others take seconds, which `guerdon --help` should not.
_HOMES = {
    "evaluate_run": "guerdon.training.replay",
    "load_policy": "guerdon.training.replay",
    "train": "guerdon.entry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
