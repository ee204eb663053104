"""Python that a configuration needs: modules and files, imported for what they register."""

import importlib
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from guerdon.config.errors import ConfigError, line
from guerdon.config.registry import registered

_PREFIX = "guerdon_file_"
_registering: set[Path] = set()  # files that have registered something


def import_all(names: Iterable[str], key: str = "imports") -> None:
    """Imports modules and files; a file that is loaded already, under any name, is left alone.

    Args:
        names: Dotted names of modules, and paths of files.
        key: Where they were named, for errors.
    """
    for name in names:
        if not is_path(name):
            _import_module(name, key)
        elif not Path(name).is_file():
            raise ConfigError(
                f"{key!r} names the file {name!r}, which is not there: put it back, or write where "
                f"it is now"
            )
        elif not _is_loaded(Path(name)):
            try:
                run_file(Path(name))
            except Exception as error:
                raise ConfigError(
                    f"the file {name!r} of {key!r} fails with {type(error).__name__}: {line(error)}"
                ) from error


def is_path(name: str) -> bool:
    """Whether a name means a file, and not a module.

    Args:
        name: As it was written.
    """
    return name.endswith(".py") or "/" in name or "\\" in name


def resolved(names: Any, folder: Path) -> Any:
    """Names with whole paths; one name is a list of one, and anything else left for validation.

    Args:
        names: Modules, and paths of files.
        folder: What a path that is not whole starts from.
    """
    if isinstance(names, str):
        names = [names]
    if not is_names(names):
        return names
    return [str((folder / name).resolve()) if is_path(name) else name for name in names]


def is_names(names: Any) -> bool:
    """Whether something is a list of text.

    Args:
        names: What a configuration holds.
    """
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def run_file(path: Path) -> ModuleType:
    """Runs a Python file as a module that others can refer to, as often as it is called.

    Args:
        path: The file.
    """
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


def is_needed(path: Path, module: ModuleType, values: Any) -> bool:
    """Whether values that a file gave mean nothing without it.

    Args:
        path: The file.
        module: What it was run as.
        values: The values.
    """
    return path.resolve() in _registering or _refers(values, module.__name__)


def find_object(name: str, key: str) -> Any:
    """The class or function that ``package.module:name`` means.

    Args:
        name: As it was written.
        key: Where it was written, for errors.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"{key!r} has {name!r}: write 'package.module:Class'")
    found = _import_module(module, key)
    if not hasattr(found, attribute):
        raise ConfigError(f"{key!r} has {name!r}, but the module {module!r} has no {attribute!r}")
    return getattr(found, attribute)


def _import_module(name: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(
            f"{key!r} names the module {name!r}, which cannot be imported ({line(error)}): install "
            f"it, or see that its folder is in PYTHONPATH"
        ) from error


class _Loader(SourceFileLoader):
    """Reads no compiled file: one is taken for new if the source changed in the same second."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _is_loaded(path: Path) -> bool:
    """Whether a file is a module already, be it as a script, a module or a config."""
    path = path.resolve()
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return True
    return False


def _known() -> dict[Any, Any]:
    """What others than guerdon have registered, here and with Gymnasium."""
    environments = importlib.import_module("gymnasium").registry
    own = {name: environments[name] for name in environments if not name.startswith("guerdon/")}
    return {**registered(), **own}


def _refers(values: Any, module: str) -> bool:
    """Whether a class or function of a module is among values."""
    if isinstance(values, dict):
        return any(_refers(value, module) for value in values.values())
    if isinstance(values, list):
        return any(_refers(value, module) for value in values)
    return getattr(values, "__module__", None) == module
