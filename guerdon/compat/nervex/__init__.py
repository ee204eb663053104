"""nerveX's interfaces: policies, networks, `Armor`, `Adder`, `BufferManager`, losses (`rl_utils`).

from guerdon.compat.nervex import Armor, CommonPolicy
from guerdon.compat.nervex.rl_utils import q_nstep_td_data, q_nstep_td_error
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guerdon.compat.nervex.adder import Adder
    from guerdon.compat.nervex.armor import Armor
    from guerdon.compat.nervex.armor_plugins import Plugin, register_plugin
    from guerdon.compat.nervex.attr_dict import AttrDict
    from guerdon.compat.nervex.buffer_manager import BufferManager
    from guerdon.compat.nervex.common_policy import CommonConfig, CommonPolicy
    from guerdon.compat.nervex.discrete_nets import ConvDiscreteNet, FCDiscreteNet, FCRDiscreteNet
    from guerdon.compat.nervex.limits import Limits

__all__ = [
    "Adder",
    "Armor",
    "AttrDict",
    "BufferManager",
    "CommonConfig",
    "CommonPolicy",
    "ConvDiscreteNet",
    "FCDiscreteNet",
    "FCRDiscreteNet",
    "Limits",
    "Plugin",
    "register_plugin",
]

# Imported when asked for: reading a config does not need torch.
_HOMES = {
    "Adder": "guerdon.compat.nervex.adder",
    "Armor": "guerdon.compat.nervex.armor",
    "AttrDict": "guerdon.compat.nervex.attr_dict",
    "BufferManager": "guerdon.compat.nervex.buffer_manager",
    "CommonConfig": "guerdon.compat.nervex.common_policy",
    "CommonPolicy": "guerdon.compat.nervex.common_policy",
    "ConvDiscreteNet": "guerdon.compat.nervex.discrete_nets",
    "FCDiscreteNet": "guerdon.compat.nervex.discrete_nets",
    "FCRDiscreteNet": "guerdon.compat.nervex.discrete_nets",
    "Limits": "guerdon.compat.nervex.limits",
    "Plugin": "guerdon.compat.nervex.armor_plugins",
    "register_plugin": "guerdon.compat.nervex.armor_plugins",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
