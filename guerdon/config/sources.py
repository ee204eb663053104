"""Where a configuration starts from: a preset, a file, a run's folder or a mapping."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from guerdon.config import imports
from guerdon.config.errors import ConfigError, line, suggestion

ZOO = Path(__file__).parents[1] / "zoo"
PLAIN = (str, int, float, bool, type(None))


def options(group: str) -> list[str]:
    """The names of a group of the zoo: ``env`` or ``preset``.

    Args:
        group: The folder's name.
    """
    return sorted(path.stem for path in (ZOO / group).glob("*.yaml"))


def split_preset(name: str, policies: Iterable[str]) -> dict[str, str]:
    """The groups that a preset's name is made of: ``<env>_<policy>[_<reward>]``.

    Args:
        name: The preset.
        policies: Names of all policies.
    """
    for env in (env for env in options("env") if name.startswith(f"{env}_")):
        rest = name.removeprefix(f"{env}_")
        for policy in sorted(policies, key=len, reverse=True):
            if rest == policy:
                return {"env": env, "policy": policy}
            if rest.startswith(f"{policy}_"):
                return {"env": env, "policy": policy, "reward": rest.removeprefix(f"{policy}_")}
    raise ConfigError(f"the preset {name!r} is not named <env>_<policy>[_<reward>]")


def is_file(source: str | Path) -> bool:
    """Whether a source means a file or folder rather than a preset.

    Args:
        source: As it was given.
    """
    if isinstance(source, Path):
        return True
    looks = "/" in source or "\\" in source or source.endswith((".yaml", ".yml", ".py"))
    return looks or Path(source).is_dir()


def read(path: Path) -> dict[str, Any]:
    """The values of a YAML file, a Python file with ``main_config``, or a run's folder.

    A Python file is run. If it registers something, or its values hold classes or functions of its
    own, it is among the ``imports`` of the values.

    Args:
        path: The file or folder.
    """
    if path.is_dir():
        path = path / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"there is no config file {str(path)!r}{_beside(path)}")
    if path.suffix == ".py":
        return _read_python(path)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"the config file {str(path)!r} has to end in .yaml, .yml or .py")
    try:
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except Exception as error:  # of PyYAML, of OmegaConf, or of the file's encoding
        raise ConfigError(
            f"the config file {str(path)!r} is no valid YAML: {line(error)}"
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(f"the config file {str(path)!r} has to hold a mapping of sections")
    return _with_imports({str(key): plain(value) for key, value in values.items()}, path)


def _with_imports(values: dict[str, Any], path: Path, *more: str) -> dict[str, Any]:
    """Values whose imports are found from everywhere, and begin with others."""
    named = imports.resolved(values.get("imports"), path.parent)
    if imports.is_names(named) or (named is None and more):
        named = list(dict.fromkeys([*more, *(named or [])]))
    return values if named is None else {**values, "imports": named}


def _beside(path: Path) -> str:
    folder = path.parent
    found = [other.name for other in folder.iterdir()] if folder.is_dir() else []
    files = [name for name in found if name.endswith((".yaml", ".yml", ".py"))]
    hint = suggestion(path.name, files)
    return f": {hint}" if hint.startswith("did") else ""


def _read_python(path: Path) -> dict[str, Any]:
    try:
        module = imports.run_file(path)
    except Exception as error:
        raise ConfigError(
            f"the config file {str(path)!r} fails with {type(error).__name__}: {line(error)}"
        ) from error
    if not hasattr(module, "main_config"):
        raise ConfigError(f"the config file {str(path)!r} does not define 'main_config'")
    values = plain(module.main_config)
    if not isinstance(values, dict):
        raise ConfigError(f"'main_config' of {str(path)!r} has to be a dict, or have attributes")
    values = merged(plain(getattr(module, "create_config", {})), values)
    needed = imports.is_needed(path, module, values)
    return _with_imports(values, path, *([str(path.resolve())] if needed else []))


def merged(weak: Any, strong: dict[str, Any]) -> dict[str, Any]:
    """Sections with what others say beside them, such as DI-engine's ``create_config``.

    Args:
        weak: Sections that say what the strong ones leave out; anything else says nothing.
        strong: Sections.
    """
    values = {**weak} if isinstance(weak, dict) else {}
    for key, value in strong.items():
        both = isinstance(value, dict) and isinstance(values.get(key), dict)
        values[key] = merged(values[key], value) if both else value
    return values


def plain(values: Any) -> Any:
    """Mappings and plain objects as dictionaries, sequences as lists; all else as it is.

    Args:
        values: What a mapping or a Python file holds.
    """
    if isinstance(values, Mapping):
        return {str(key): plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    if isinstance(values, Path):
        return str(values)
    if isinstance(values, PLAIN) or callable(values) or not hasattr(values, "__dict__"):
        return values
    return plain({key: value for key, value in vars(values).items() if not key.startswith("_")})
