"""Optional packages: imported where they are used, with a hint when one is missing."""

import importlib
from types import ModuleType


class MissingExtraError(ImportError):
    """An optional package is not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or raise an error that names its extra.

    Args:
        module: Dotted name of the module, for example ``"minari"``.
        extra: The extra of guerdon that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        root = module.partition(".")[0]
        if error.name != root:
            raise  # the package is there; something in it is not, and its own message says what
        raise MissingExtraError(
            f"this needs the package {root!r}, which is not installed: "
            f"pip install 'guerdon[{extra}]'"
        ) from error
