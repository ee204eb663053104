"""guerdon: reinforcement learning for people whose reward has to be learned."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guerdon.entry import train
    from guerdon.lab.compare import compare_rewards
    from guerdon.lab.curves import plot
    from guerdon.lab.export import export
    from guerdon.training.callback import Callback
    from guerdon.training.replay import evaluate_policy as evaluate
    from guerdon.training.replay import evaluate_run, load_policy, load_reward

__version__ = "0.2.0"
__all__ = [
    "Callback",
    "compare_rewards",
    "evaluate",
    "evaluate_run",
    "export",
    "load_policy",
    "load_reward",
    "plot",
    "train",
]

# Imported when asked for: torch and others take seconds, which `guerdon --help` should not.
_HOMES = {
    "Callback": "guerdon.training.callback:Callback",
    "compare_rewards": "guerdon.lab.compare:compare_rewards",
    "evaluate": "guerdon.training.replay:evaluate_policy",
    "evaluate_run": "guerdon.training.replay:evaluate_run",
    "export": "guerdon.lab.export:export",
    "load_policy": "guerdon.training.replay:load_policy",
    "load_reward": "guerdon.training.replay:load_reward",
    "plot": "guerdon.lab.curves:plot",
    "train": "guerdon.entry:train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
