"""Stand-ins for the packages of nerveX and DI-engine, while a config file of theirs is run.

Modules that guerdon has under another name are found; everything else in these packages is an
empty class, whose name is reported.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from guerdon.compat.keys import Report
from guerdon.compat.nervex.tables import PACKAGES

_HERE = {
    "nervex": "guerdon.compat.nervex",
    "app_zoo": "guerdon.compat.app_zoo",
    "ding": "guerdon.compat.di_engine",
    "ding.config": "guerdon.compat.nervex.config",
    "dizoo": "guerdon.compat.app_zoo",
}
_ZOOS = ("app_zoo", "dizoo")


class _Module(ModuleType):
    """A module of one of these packages."""

    def __init__(self, name: str, report: Report) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._report = report

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(_find(here(self.__name__)), name, None)
        if found is None:
            self._report.dropped[f"{self.__name__}.{name}"] = "not in guerdon"
            found = type(name, (), {"__init__": lambda *_, **__: None})
        return found


class _Finder(MetaPathFinder, Loader):
    def __init__(self, report: Report) -> None:
        self.report = report

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        if package not in PACKAGES:
            return None
        if package in _ZOOS and PathFinder.find_spec(fullname, path, target) is not None:
            return None  # a folder of the user's, with configs
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name, self.report)

    def exec_module(self, module: ModuleType) -> None:
        pass


def here(name: str) -> str:
    """Return guerdon's name of a module of these packages: its own, or that of the package."""
    for there in sorted(_HERE, key=len, reverse=True):
        if f"{name}.".startswith(f"{there}."):
            ours = _HERE[there] + name.removeprefix(there)
            parent = ours.rpartition(".")[0]
            return ours if _find(ours) is not None or _find(parent) is None else parent
    return name


def _find(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


@contextmanager
def stand_ins(report: Report) -> Iterator[None]:
    """Make imports from their packages succeed; what guerdon lacks is added to the report."""
    finder = _Finder(report)
    sys.meta_path.insert(0, finder)  # their packages may be here, but not what they import
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Module)]:
            del sys.modules[name]
