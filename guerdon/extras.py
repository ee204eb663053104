"""Packages that are imported on first use: optional ones, and numba."""

import importlib
import shlex
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_pending: list[tuple[Callable[..., Any], dict[str, Any]]] = []
_lock = threading.Lock()


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
            raise  # installed, but an import within it failed
        raise MissingExtraError(
            f"this needs the package {root!r}, which is not installed: {install_command(extra)}"
        ) from error


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from the checkout that guerdon is in if it is."""
    root = Path(__file__).parents[1]
    if not (root / "pyproject.toml").is_file():
        return f"in a checkout of guerdon, pip install -c constraints.txt --editable '.[{extra}]'"
    constraints = shlex.quote(str(root / "constraints.txt"))
    return f"pip install -c {constraints} --editable {shlex.quote(f'{root}[{extra}]')}"


def compiled(**options: Any) -> Callable[[F], F]:
    """Compile a function with numba when the first such function is called.

    Importing numba takes a tenth of the time to the first environment step.

    Args:
        **options: Of ``numba.njit``, beside ``cache``.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def first(*args: Any) -> Any:
            _compile()
            return getattr(sys.modules[function.__module__], function.__name__)(*args)

        _pending.append((function, options))
        return cast("F", first)

    return decorate


def _compile() -> None:
    """Replace all functions by compiled ones, in their modules: they may call each other."""
    with _lock:
        njit = importlib.import_module("numba").njit
        for function, options in _pending:
            module = sys.modules[function.__module__]
            setattr(module, function.__name__, njit(cache=True, **options)(function))
        _pending.clear()
