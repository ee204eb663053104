"""nerveX's interfaces: policies, networks, `Armor`, `Adder`, `BufferManager`, losses (`rl_utils`).

from guerdon.compat.nervex import Armor, CommonPolicy
from guerdon.compat.nervex.rl_utils import q_nstep_td_data, q_nstep_td_error
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guerdon.compat.nervex.adder import Adder as Adder
    from guerdon.compat.nervex.armor import Armor as Armor
    from guerdon.compat.nervex.armor_plugins import Plugin as Plugin
    from guerdon.compat.nervex.armor_plugins import register_plugin as register_plugin
    from guerdon.compat.nervex.attr_dict import AttrDict as AttrDict
    from guerdon.compat.nervex.data import BufferManager as BufferManager
    from guerdon.compat.nervex.model import ConvDiscreteNet as ConvDiscreteNet
    from guerdon.compat.nervex.model import FCDiscreteNet as FCDiscreteNet
    from guerdon.compat.nervex.model import FCRDiscreteNet as FCRDiscreteNet
    from guerdon.compat.nervex.policy import CommonConfig as CommonConfig
    from guerdon.compat.nervex.policy import CommonPolicy as CommonPolicy

# Imported lazily: reading a config does not need torch.
_MODULES = {
    "adder": ["Adder"],
    "armor": ["Armor"],
    "armor_plugins": ["Plugin", "register_plugin"],
    "attr_dict": ["AttrDict"],
    "data": ["BufferManager"],
    "model": ["ConvDiscreteNet", "FCDiscreteNet", "FCRDiscreteNet"],
    "policy": ["CommonConfig", "CommonPolicy"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
