"""Python code named by a configuration: modules and files, and classes and functions in them.

Modules are also searched in the current folder, and in the folders of ``imports``; `needed` lists
what another process has to import to find the same code.
"""

import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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
_IN_MODULE = re.compile(r"([A-Za-z_][\w.]*):[\w.-]+")
PROGRAMS = ("vzd_path", "cfg_path", "game_args")
"""Options of EnvPool's VizDoom that name a program which it starts."""
_registering: set[Path] = set()  # files that registered something
_searched: set[Path] = set()  # folders added to the search path
_running: list[str] = []  # modules and files that are being imported
_watchers: ContextVar[tuple[Callable[[str], None], ...]] = ContextVar("watchers", default=())


@contextmanager
def watched(watcher: Callable[[str], None]) -> Iterator[None]:
    """Call a function with each name of code before it is run; an error that it raises stops it."""
    token = _watchers.set((*_watchers.get(), watcher))
    try:
        yield
    finally:
        _watchers.reset(token)


def announce(name: str) -> None:
    """Call the functions of `watched`."""
    for watcher in _watchers.get():
        watcher(name)


def import_all(names: Iterable[str], key: str = "imports") -> None:
    """Import modules and files, and add folders to the search path.

    A file that is already loaded, under any name, is not run again.
    """
    for name in names:
        announce(name)
        if Path(name).is_dir() and is_path(name):
            _search(Path(name))
        else:
            _load(name, key)


def find_object(name: str, key: str, ids: Container[str] = ()) -> Any:
    """Return the class or function of ``package.module:Name`` or ``path/file.py:Name``.

    Args:
        name: The name.
        key: Configuration key, for the error message.
        ids: Names that the module may register instead; these return None.
    """
    module, colon, attribute = name.rpartition(":")
    if name.startswith("<"):
        raise ConfigError(
            f"{key!r} is {name}, which was passed as an object without a file: pass it again"
        )
    if not colon:
        raise ConfigError(
            f"{key!r} has {name!r}: write 'package.module:Name' or 'path/to/file.py:Name'"
        )
    announce(name)
    found = _load(module, key)
    target = _find(found, attribute)
    if target is not None or attribute in ids:
        return target
    kind, beside = "file" if is_path(module) else "module", Path(f"{module}.py")
    other = str(getattr(found, "__file__", None) or "")
    message = f"{key!r} has {name!r}, but the {kind} {module!r} has no {attribute!r}"
    if kind == "module" and beside.is_file() and beside.resolve() != Path(other).resolve():
        message += f" (it is {other}; for yours write '{beside}:{attribute}')"
    raise ConfigError(message)


def _find(module: ModuleType, name: str) -> Any:
    """Return an attribute of a module by its dotted name; None if there is none."""
    try:
        return attrgetter(name)(module)
    except AttributeError:
        return None


def _module_of(found: Any) -> str:
    return str(getattr(found, "__module__", None) or "")


def name_of(found: Any) -> str | None:
    """Return a name with which `find_object` finds a class or function in any process.

    None for lambdas, functions inside functions, and classes of a notebook.
    """
    module, qualname = getattr(found, "__module__", None), getattr(found, "__qualname__", "<")
    if module is None or "<" in qualname or module not in sys.modules:
        return None
    if _find(sys.modules[module], qualname) != found or (place := _place(module)) is None:
        return None
    return f"{place}:{qualname}"


def _place(module: str) -> str | None:
    """Return the name of a module for `_load`: a path for scripts and files."""
    if module != "__main__" and not module.startswith(_PREFIX):
        return module
    spec = getattr(sys.modules[module], "__spec__", None)
    if module == "__main__" and spec is not None:  # of `python -m package.script`
        return str(spec.name)
    file = getattr(sys.modules[module], "__file__", None)
    return str(Path(file).resolve()) if file and Path(file).is_file() else None


def needed(values: Any, classes: Iterable[Any] = ()) -> list[str]:
    """Return what another process has to import to find the code of a configuration.

    Args:
        values: The configuration.
        classes: Registered classes that it uses.
    """
    texts = [text for _, text in leaves(values) if isinstance(text, str)]
    modules = [match[1] for text in texts if (match := _IN_MODULE.fullmatch(text))]
    registered_in = [place for each in classes if (place := _place(each.__module__)) is not None]
    registered_in += _registering_env(values["env"]["id"])
    names = [name for name in (*modules, *registered_in) if not is_path(name)]
    folders = [str(folder) for name in names if (folder := _own_folder(name)) is not None]
    return list(dict.fromkeys([*folders, *registered_in]))


def _registering_env(env_id: str) -> list[str]:
    """Return the user's script or module that registered an environment."""
    spec = importlib.import_module("gymnasium").registry.get(env_id)
    creator: Any = getattr(spec, "entry_point", "")
    module = creator.partition(":")[0] if isinstance(creator, str) else _module_of(creator)
    own = module == "__main__" or _own_folder(module) is not None
    return [place] if own and (place := _place(module)) is not None else []


def leaves(values: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values in dictionaries and lists, each with its key."""
    if isinstance(values, dict):
        for inner, value in values.items():
            yield from leaves(value, str(inner))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from leaves(value, key)
    else:
        yield key, values


def _own_folder(module: str) -> Path | None:
    """Return the folder of a module that is importable only from there or from its script."""
    package = module.partition(".")[0]
    found = sys.modules.get(package)
    places = [*getattr(found, "__path__", [])] or [getattr(found, "__file__", None)]
    if places[0] is None or package == "guerdon":
        return None
    folder = Path(places[0]).resolve().parent
    script = getattr(sys.modules["__main__"], "__file__", None)
    beside = {Path(script).resolve().parent} if script else set()
    return folder if folder in {Path.cwd(), *beside, *_searched} else None


def _search(folder: Path) -> None:
    """Append a folder to the search path."""
    folder = folder.resolve()
    _searched.add(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def with_whole_paths(values: Any) -> Any:
    """Return values with absolute paths for each ``file.py:Name`` of an existing file."""
    if isinstance(values, dict):
        return {key: with_whole_paths(value) for key, value in values.items()}
    if isinstance(values, list):
        return [with_whole_paths(value) for value in values]
    match = _IN_FILE.fullmatch(values) if isinstance(values, str) else None
    if match is None or not Path(match[1]).is_file():
        return values
    return f"{Path(match[1]).resolve()}:{match[2]}"


def is_path(name: str) -> bool:
    """Return whether a name is a file rather than a module."""
    return name.endswith(".py") or "/" in name or "\\" in name


def resolved(names: Any, folder: Path) -> list[str]:
    """Return names of modules and files with absolute paths; a single name becomes a list."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"'imports' is {names!r}: it should be a list of modules and files")
    return [str((folder / name).resolve()) if is_path(name) else name for name in names]


def run_file(path: Path) -> ModuleType:
    """Run a Python file as a module, again at every call."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"{_PREFIX}{path.stem}_{digest}"  # files in other folders may have the same name
    spec = spec_from_loader(name, _Loader(name, str(path.resolve())))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    known, before = _known(), sys.modules.get(name)
    sys.modules[name] = module
    _search(path.parent)
    try:
        with _importing(path.name):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    # Other processes cannot import it by name, so that its classes have to be pickled by value.
    importlib.import_module("cloudpickle").register_pickle_by_value(module)
    if _known() != known:
        _registering.add(path.resolve())
    return module


def loaded(path: Path) -> ModuleType | None:
    """Return the loaded module of a file: a script, a module or a config."""
    path = path.resolve()
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return module
    return None


def refuse_while_importing(what: str) -> None:
    """Raise an error if a file that is being imported does something reserved for scripts."""
    if _running:
        raise ConfigError(
            f"{_running[-1]} calls {what} while it is imported: put the call under "
            "'if __name__ == \"__main__\":'"
        )


@contextmanager
def _importing(name: str) -> Iterator[None]:
    _running.append(name)
    try:
        yield
    finally:
        _running.pop()


def registers(path: Path) -> bool:
    """Return whether a file registered a class or an environment when it was run."""
    return path.resolve() in _registering


def _load(name: str, key: str) -> ModuleType:
    """Return the module of a dotted name or of a file."""
    if not is_path(name):
        try:
            with _importing(name):
                return _import_module(name)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{key!r} names the module {name!r}, which cannot be imported ({line(error)}): "
                f"install it, or name its folder in 'imports'"
            ) from error
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"{key!r} names the file {name!r}, which is not there: put it back, or write where it "
            "is now (of a run, in its config.yaml)"
        )
    try:
        return loaded(path) or run_file(path)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the file {name!r} of {key!r} fails with {type(error).__name__}: {line(error)}"
        ) from error


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        top, here = name.partition(".")[0], Path.cwd()
        found = (here / f"{top}.py").is_file() or (here / top).is_dir()
        if error.name != top or not found or str(here) in sys.path:
            raise
    _search(here)
    return importlib.import_module(name)


class _Loader(SourceFileLoader):
    """Ignores compiled files, which look current if the source changed within the same second."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _known() -> dict[Any, Any]:
    """Return the registrations outside guerdon, here and with Gymnasium."""
    environments = importlib.import_module("gymnasium").registry
    own = {name: environments[name] for name in environments if not name.startswith("guerdon/")}
    return {**registered(), **own}
