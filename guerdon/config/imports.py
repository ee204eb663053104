"""Python that a configuration names: modules and files to import, classes and functions in them."""

import importlib
import re
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from operator import attrgetter
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from guerdon.config.errors import ConfigError, line
from guerdon.config.registry import registered

_PREFIX = "guerdon_file_"
_IN_FILE = re.compile(r"(.+\.py):([\w.]+)")
_registering: set[Path] = set()  # files that have registered something


def import_all(names: Iterable[str], key: str = "imports") -> None:
    """Imports modules and files; a file that is loaded already, under any name, is left alone."""
    for name in names:
        _load(name, key)


def find_object(name: str, key: str) -> Any:
    """The class or function that ``package.module:Name`` or ``path/to/file.py:Name`` means."""
    module, colon, attribute = name.rpartition(":")
    if not colon:
        raise ConfigError(
            f"{key!r} has {name!r}: write 'package.module:Name' or 'path/to/file.py:Name'"
        )
    found = _load(module, key)
    try:
        return attrgetter(attribute)(found)
    except AttributeError:
        kind = "file" if is_path(module) else "module"
        raise ConfigError(
            f"{key!r} has {name!r}, but the {kind} {module!r} has no {attribute!r}"
        ) from None


def name_of(found: Any) -> str:
    """The name by which `find_object` finds a class or function."""
    module = str(found.__module__)
    file = sys.modules[module].__file__ if module.startswith(_PREFIX) else None
    return f"{file or module}:{found.__qualname__}"


def with_whole_paths(values: Any) -> Any:
    """Values in which each ``file.py:Name`` of an existing file has that file's whole path."""
    if isinstance(values, dict):
        return {key: with_whole_paths(value) for key, value in values.items()}
    if isinstance(values, list):
        return [with_whole_paths(value) for value in values]
    match = _IN_FILE.fullmatch(values) if isinstance(values, str) else None
    if match is None or not Path(match[1]).is_file():
        return values
    return f"{Path(match[1]).resolve()}:{match[2]}"


def is_path(name: str) -> bool:
    """Whether a name means a file, and not a module."""
    return name.endswith(".py") or "/" in name or "\\" in name


def resolved(names: Any, folder: Path) -> list[str]:
    """Names of modules and files, with whole paths; one name is a list of one."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"'imports' is {names!r}: it should be a list of modules and files")
    return [str((folder / name).resolve()) if is_path(name) else name for name in names]


def run_file(path: Path) -> ModuleType:
    """Runs a Python file as a module that others can refer to, as often as it is called."""
    name = f"{_PREFIX}{path.stem}"
    spec = spec_from_loader(name, _Loader(name, str(path.resolve())))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    known, before = _known(), sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    # No other process finds it by its name, so that its classes have to travel as a whole.
    importlib.import_module("cloudpickle").register_pickle_by_value(module)
    if _known() != known:
        _registering.add(path.resolve())
    return module


def loaded(path: Path) -> ModuleType | None:
    """The module that a file is already, be it as a script, a module or a config."""
    path = path.resolve()
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return module
    return None


def registers(path: Path) -> bool:
    """Whether a file has registered a class or an environment when it was run."""
    return path.resolve() in _registering


def _load(name: str, key: str) -> ModuleType:
    """The module of a dotted name or of a file."""
    if not is_path(name):
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise ConfigError(
                f"{key!r} names the module {name!r}, which cannot be imported ({line(error)}): "
                f"install it, or see that its folder is in PYTHONPATH"
            ) from error
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"{key!r} names the file {name!r}, which is not there: put it back, or write where it "
            f"is now"
        )
    try:
        return loaded(path) or run_file(path)
    except Exception as error:
        raise ConfigError(
            f"the file {name!r} of {key!r} fails with {type(error).__name__}: {line(error)}"
        ) from error


class _Loader(SourceFileLoader):
    """Reads no compiled file: one is taken for new if the source changed in the same second."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _known() -> dict[Any, Any]:
    """What others than guerdon have registered, here and with Gymnasium."""
    environments = importlib.import_module("gymnasium").registry
    own = {name: environments[name] for name in environments if not name.startswith("guerdon/")}
    return {**registered(), **own}
