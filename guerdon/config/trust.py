"""Code that a run directory names: it is run if this user made the run, or trusts it.

A run names code in its config: ``imports``, ``module:Name``, ``file.py:Name``. When a run is made,
these names and the files that they resolve to are recorded in the state directory of the user,
outside of the run. Everything else that a run directory names is refused without ``trust``.

Code inside of a run can import any other file there, so that these are recorded with it.
"""

import hashlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from guerdon.config import imports, sources
from guerdon.config.errors import ConfigError, as_path
from guerdon.limits import read_bytes, read_json

_OWN = {"guerdon.envs.minigrid:minigrid_view", "guerdon.envs.cameras:ImageObservation"}
_DATA = ("zoo:", "minari:", "expert:")  # prefixes of names of demonstrations
_checked: ContextVar[tuple[Path, ...]] = ContextVar("checked", default=())  # by `code_of`

Code = dict[str, dict[str, str]]
"""File and checksum of each name of code."""


class UntrustedCodeError(ConfigError):
    """Raised if a run directory names code that this user has not run with it."""


@contextmanager
def code_of(
    folder: str | Path | None, *, trust: bool = False, own: Any = ()
) -> Iterator[dict[str, None]]:
    """Refuse code that a run directory names, unless this user made the run on this machine.

    Args:
        folder: Run directory, or its folder ``reward``; None for a config of the user.
        trust: Whether to run all code that it names.
        own: Values given by the user, such as overrides; code that they name is run.

    Yields:
        The names of code that were used, for `remember`.
    """
    used: dict[str, None] = {}
    path = None if folder is None else as_path(folder).resolve()
    check = None
    if not (path is None or trust or path in _checked.get()):
        check = _Check(path, {_whole(name) for name in (*_OWN, *_names(own), *_objects(own))})

    def watch(name: str) -> None:
        if check is not None:
            check(_whole(name))
        used[_whole(name)] = None

    token = _checked.set(_checked.get() if path is None else (*_checked.get(), path))
    try:
        with imports.watched(watch):
            yield used
    finally:
        _checked.reset(token)


def remember(folder: str | Path, used: Iterable[str], values: Any) -> None:
    """Record the code that this user has used with a run.

    Args:
        folder: The run directory.
        used: Names of code, from `code_of`.
        values: The config, which may contain functions and classes.
    """
    names = map(_whole, (*used, *values["imports"], *_objects(values)))
    files, folder = {name: _file(name) for name in names}, Path(folder).resolve()
    if not files:
        return
    record = _record(folder)
    found = {
        name: {"file": str(file or ""), "sha256": _digest(file, folder)}
        for name, file in files.items()
    }
    content = {"format": 1, "run": str(folder), "code": {**_read(record), **found}}
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        temporary = record.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(content, indent=1))
        temporary.replace(record)
    except OSError as error:
        warnings.warn(
            f"the code of {folder} is not recorded as yours ({error}): other commands will need "
            "--trust",
            stacklevel=2,
        )


class _Check:
    """Raises an error for code that is neither recorded for a run nor named by the user."""

    def __init__(self, folder: Path, own: set[str]) -> None:
        self.folder, self.own = folder, own
        self.code = _read(_record(folder))
        self.changed: set[str] = set()

    def __call__(self, name: str) -> None:
        if name in self.own:
            return
        known, file = self.code.get(name), _file(name)
        if known is None or (file is not None and known["file"] != str(file)):
            raise UntrustedCodeError(self._refusal(name))
        inside = file is not None and file.is_relative_to(self.folder)
        if inside:  # its compiled files are not compared: they are neither read nor written
            os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(_state() / "compiled")
        if file is None or _digest(file, self.folder) in (known["sha256"], ""):  # "": will fail
            return
        if inside:
            raise UntrustedCodeError(
                f"{file}, inside of a run, or what it can import there, has changed since this "
                "user ran it: look at it, then add --trust (in Python: trust=True) to run it"
            )
        if name not in self.changed:
            self.changed.add(name)
            warnings.warn(f"{file} has changed since {self.folder} was made", stacklevel=2)

    def _refusal(self, name: str) -> str:
        named: set[str] = set()
        with suppress(ConfigError):  # a folder ``reward`` has no config
            named = {_whole(each) for each in _names(sources.read(self.folder))}
        unknown = named - self.own - self.code.keys()
        names = ", ".join(sorted({name, *unknown}))
        return (
            f"{self.folder} was not made by this user on this machine, and would run this code: "
            f"{names}. Look at it, then add --trust (in Python: trust=True) to run it"
        )


def _names(values: Any) -> Iterator[str]:
    """Yield names of code in values: of ``imports`` and programs, and texts with a colon."""
    for key, value in imports.leaves(values):
        text = str(value)
        named = key.endswith(("imports", *imports.PROGRAMS))
        if named or (":" in text and not text.startswith(_DATA)):
            yield text


def _objects(values: Any) -> Iterator[str]:
    """Yield the names of functions and classes in values."""
    for _, value in imports.leaves(values):
        if callable(value) and (name := imports.name_of(value)) is not None:
            yield name


def _whole(name: str) -> str:
    """Return a name with the absolute path of its file."""
    module, colon, attribute = name.rpartition(":")
    path = module if colon else name
    if not imports.is_path(path):
        return name
    return f"{Path(path).resolve()}{colon}{attribute if colon else ''}"


def _file(name: str) -> Path | None:
    """Return the file of a name: of a module, that of its top-level package."""
    module, colon, _ = name.rpartition(":")
    place = module if colon else name
    if imports.is_path(place):
        return Path(place)
    top, spec = place.partition(".")[0], None
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(top)  # imports nothing
    if spec is not None:
        return None if spec.origin is None else Path(spec.origin)
    # Modules are searched in the current folder last.
    beside = (Path.cwd() / f"{top}.py", Path.cwd() / top / "__init__.py")
    return next((file for file in beside if file.is_file()), None)


def _digest(file: Path | None, run: Path) -> str:
    """Return the checksum of a file; inside of a run, with everything that it can import there."""
    if file is None or not file.exists():
        return ""
    inside, endings = file.is_relative_to(run), tuple(all_suffixes())
    others = [
        each
        for each in (sorted(run.rglob("*")) if inside else ())
        if each.is_symlink() or each.name.endswith(endings)
        if each.parent.name != "__pycache__"
    ]
    digest = hashlib.sha256()
    for each in (file, *others):
        target = each.readlink() if each.is_symlink() else ""
        digest.update(f"{each.relative_to(run) if inside else ''}\0{target}\0".encode())
        digest.update(read_bytes(each) if each.is_file() else b"")
        digest.update(b"\0")
    return digest.hexdigest()


def _state() -> Path:
    place = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(place) / "guerdon"


def _record(folder: Path) -> Path:
    """Return the file that records a run: by its first start, so that the run can be moved."""
    identity = str(folder.resolve())
    for place in (folder, folder.parent):
        try:
            identity = json.dumps(read_json(place / "run.json")["starts"][0])
            break
        except (OSError, ValueError, LookupError, TypeError):
            continue
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return _state() / "runs" / f"{digest}.json"


def _read(file: Path) -> Code:
    try:
        code = read_json(file)["code"].items()
        return {name: {key: str(each[key]) for key in ("file", "sha256")} for name, each in code}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
