"""Sources of a configuration: a preset, a file, a run directory or a mapping."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path, PurePath
from typing import Any, TypeGuard

from guerdon.config import imports
from guerdon.config.errors import ConfigError, line, suggestion
from guerdon.config.yaml_limits import check_resolved, load_yaml

ZOO = Path(__file__).parents[1] / "zoo"
RUN = "run:"
"""Prefix of the names of files in the folder of the config that names them."""
DATA = "data"
"""Folder of a run with its copies of data."""


def options(group: str) -> list[str]:
    """Return the names of a group of the zoo: ``env``, ``preset`` or ``fit``."""
    return sorted(path.stem for path in (ZOO / group).glob("*.yaml"))


def split_preset(name: str, policies: Iterable[str]) -> dict[str, str]:
    """Return the groups in a preset's name: ``<env>_<policy>[_<reward>]``."""
    for env in (env for env in options("env") if name.startswith(f"{env}_")):
        rest = name.removeprefix(f"{env}_")
        for policy in sorted(policies, key=len, reverse=True):
            if rest == policy:
                return {"env": env, "policy": policy}
            if rest.startswith(f"{policy}_"):
                return {"env": env, "policy": policy, "reward": rest.removeprefix(f"{policy}_")}
    raise ConfigError(f"the preset {name!r} is not named <env>_<policy>[_<reward>]")


def is_file(source: str | Path) -> bool:
    """Return whether a source is a file or folder rather than a preset."""
    if isinstance(source, Path):
        return True
    if "/" in source or "\\" in source or source.endswith((".yaml", ".yml", ".py")):
        return True
    presets = [*options("preset"), *options("fit")]  # which folders of the same name do not hide
    return source not in presets and Path(source).is_dir()


def is_preset(source: Any) -> TypeGuard[str]:
    """Return whether a source is the name of a preset."""
    return isinstance(source, str) and not is_file(source)


def run_dir_of(source: Any) -> Path | None:
    """Return the run directory that a source names; None for presets, files and mappings."""
    is_path = isinstance(source, str | Path) and not is_preset(source)
    return Path(source) if is_path and Path(source).is_dir() else None


def sections(source: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the values of a file, a run directory or a mapping."""
    if isinstance(source, str | Path):
        return read(Path(source))
    return dict(plain(source or {}))


def read(path: Path) -> dict[str, Any]:
    """Return the values of a YAML file, a Python file with ``main_config``, or a run directory.

    A Python file is run. If it registers something, it is added to the ``imports`` of the values.
    """
    if path.is_dir():
        return read_stored(path / "config.yaml")
    if not path.is_file():
        raise ConfigError(f"there is no config file {str(path)!r}{_beside(path)}")
    if path.suffix not in (".yaml", ".yml", ".py"):
        raise ConfigError(f"the config file {str(path)!r} has to end in .yaml, .yml or .py")
    values = _read_python(path) if path.suffix == ".py" else _read_yaml(path)
    values = located(values, path.parent)
    named = [str(path.resolve())] if imports.registers(path) else []
    named += imports.resolved(values.get("imports") or [], path.parent)
    return {**values, "imports": list(dict.fromkeys(named))} if named else values


def read_stored(path: Path) -> dict[str, Any]:
    """Return the values of the YAML file of a run or a fit, which may come from another user.

    What guerdon writes is resolved, so that an interpolation is refused.
    """
    if path.is_symlink():
        raise ConfigError(f"{path} is a symbolic link, which a run does not follow")
    values = read(path)
    check_resolved(values, path)
    return values


def _beside(path: Path) -> str:
    folder = path.parent
    found = [other.name for other in folder.iterdir()] if folder.is_dir() else []
    files = [name for name in found if name.endswith((".yaml", ".yml", ".py"))]
    hint = suggestion(path.name, files)
    return f": {hint}" if hint.startswith("did") else ""


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = load_yaml(path)
    except OSError:
        raise
    except Exception as error:  # from PyYAML, OmegaConf or the decoder
        raise ConfigError(
            f"the config file {str(path)!r} is not valid YAML: {line(error)}"
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(f"the config file {str(path)!r} has to hold a mapping of sections")
    return dict(plain(values))


def _read_python(path: Path) -> dict[str, Any]:
    imports.announce(str(path))
    try:
        module = imports.run_file(path)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the config file {str(path)!r} fails with {type(error).__name__}: {line(error)}"
        ) from error
    if not hasattr(module, "main_config"):
        raise ConfigError(f"the config file {str(path)!r} does not define 'main_config'")
    values = plain(module.main_config)
    if not isinstance(values, dict):
        raise ConfigError(f"'main_config' of {str(path)!r} has to be a dict, or have attributes")
    return values


def located(values: Any, folder: Path) -> Any:
    """Return values with paths instead of names in a folder, such as ``run:data/...``."""
    if isinstance(values, dict):
        return {key: located(value, folder) for key, value in values.items()}
    if isinstance(values, list):
        return [located(value, folder) for value in values]
    if not isinstance(values, str) or not values.startswith(RUN):
        return values
    name = PurePath(values.removeprefix(RUN))
    if name.is_absolute() or ".." in name.parts:
        raise ConfigError(f"{values!r} is outside of {folder}: write its path without {RUN!r}")
    return str(folder.resolve() / name)


def portable(values: Any, folder: Path) -> Any:
    """Return values with names in a folder instead of paths of its data; undoes `located`."""
    if isinstance(values, dict):
        return {key: portable(value, folder) for key, value in values.items()}
    if isinstance(values, list):
        return [portable(value, folder) for value in values]
    root = f"{folder.resolve() / DATA}{os.sep}"
    if not isinstance(values, str) or not values.startswith(root):
        return values
    return f"{RUN}{Path(values).relative_to(folder.resolve()).as_posix()}"


def leaves(sections: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; an empty mapping is a value."""
    for key, value in sections.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def plain(values: Any) -> Any:
    """Convert mappings and plain objects to dictionaries, and sequences to lists."""
    if isinstance(values, Mapping):
        return {str(key): plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    if isinstance(values, Path):
        return str(values)
    if isinstance(values, type) and is_dataclass(values):
        return imports.name_of(values)  # OmegaConf would convert it to a dictionary
    if callable(values) or not hasattr(values, "__dict__"):
        return values
    return plain({key: value for key, value in vars(values).items() if not key.startswith("_")})
