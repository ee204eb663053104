"""Registries of classes under short names, from guerdon and other packages."""

import importlib
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from guerdon.config.errors import ConfigError, suggestion

T = TypeVar("T")
C = TypeVar("C", bound=type)

_REGISTRIES: dict[str, "Registry[Any]"] = {}


class Registry(Generic[T]):
    """Classes of one kind under short names, for example ``Registry[type[Policy]]``.

    Names are registered by importing the module ``home``, and by entry points of the group
    ``guerdon.<kinds>`` (``guerdon.policies``, ``guerdon.rewards``) of other packages; both are read
    on first use. A registered name takes precedence over an entry point.

    Args:
        kind: Kind of classes, in the singular: ``"policy"``.
        home: Module that registers guerdon's classes, for example ``"guerdon.policy"``.
    """

    def __init__(self, kind: str, home: str) -> None:
        self.kind = kind
        self.home = home
        self.plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
        self._classes: dict[str, T] = {}
        _REGISTRIES[kind] = self

    @overload
    def register(self, name: str, *, override: bool = ...) -> Callable[[C], C]: ...

    @overload
    def register(self, name: str, cls: C, *, override: bool = ...) -> C: ...

    def register(self, name: str, cls: Any = None, *, override: bool = False) -> Any:
        """Register a class, as a decorator or as a call with the class.

        Args:
            name: Name in configurations.
            cls: Class; omitted when used as a decorator.
            override: Whether to replace another class of this name.
        """
        if cls is None:
            return lambda decorated: self.register(name, decorated, override=override)
        present = self._classes.get(name)
        if present is not None and not override and _conflict(_origin(present), _origin(cls)):
            raise ConfigError(
                f"the {self.kind} {name!r} is {_path(present)} already, so {_path(cls)} needs "
                f"another name (or override=True)"
            )
        self._classes[name] = cls
        return cls

    def get(self, name: str) -> T:
        """Return the class of a name.

        Args:
            name: Registered name, ``package.module:Name`` or ``path/to/file.py:Name``.
        """
        if ":" in name:
            from guerdon.config.imports import find_object  # circular import

            key = "policy.model.type" if self.kind == "model" else f"{self.kind}.type"
            return find_object(name, key)  # type: ignore[no-any-return]
        importlib.import_module(self.home)
        if name not in self._classes:
            points = self._entry_points()
            if name not in points:
                raise ConfigError(f"unknown {self.kind} {name!r}: {self._hint(name)}")
            self.register(name, _load(points[name]))
        return self._classes[name]

    def names(self) -> list[str]:
        """Return all names, sorted; entry points are not imported."""
        importlib.import_module(self.home)
        return sorted({*self._classes, *self._entry_points()})

    def _hint(self, name: str) -> str:
        hint = suggestion(name, self.names())
        more = ", or add the file or module that registers it to 'imports'"
        return hint if hint.startswith("did") else hint + more

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=f"guerdon.{self.plural}")}


def registry_of(kind: str) -> Registry[Any]:
    """Return the registry of a kind; imports the package that makes it."""
    if kind not in _REGISTRIES:
        importlib.import_module(f"guerdon.{kind}")
    return _REGISTRIES[kind]


def registered() -> dict[tuple[str, str], Any]:
    """Return the registered classes outside guerdon, by kind and name."""
    return {
        (kind, name): cls
        for kind, registry in _REGISTRIES.items()
        for name, cls in registry._classes.items()
        if cls.__module__.partition(".")[0] != "guerdon"
    }


def _origin(cls: Any) -> tuple[Path | str, str]:
    """Return the file of a class, or the name of its module, and its name there.

    A file that is run again, as a module, a script or a config, makes new classes.
    """
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file).resolve() if file else str(cls.__module__), cls.__qualname__


def _conflict(old: tuple[Path | str, str], new: tuple[Path | str, str]) -> bool:
    """Return whether two classes differ; a file that is gone has been moved."""
    return old != new and not (isinstance(old[0], Path) and not old[0].exists())


def _path(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _load(point: EntryPoint) -> type:
    source = f"the entry point {point.name!r} ({point.group} = {point.value})"
    try:
        loaded = point.load()
    except Exception as error:
        raise ConfigError(f"{source} cannot be imported: {error}") from error
    if not isinstance(loaded, type):
        raise ConfigError(f"{source} has to be a class, but is {loaded!r}")
    return loaded
