"""Files of the user's own that a config names, and their copies on the nodes of a cluster."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from guerdon.config.imports import is_path, leaves
from guerdon.config.schema import GuerdonConfig

Files = Mapping[str, str]
"""Paths here, with the paths of their copies in the working directory of workers."""


_WRITTEN = ("record_path", "positive_dir", "negative_dir")  # may not exist yet


def with_absolute_paths(config: GuerdonConfig) -> GuerdonConfig:
    """Return a config whose data is found from every working directory."""
    return with_data(config, lambda _, path: os.path.abspath(path))  # noqa: PTH100 - keeps links


def with_data(config: GuerdonConfig, change: Callable[[str, str], str]) -> GuerdonConfig:
    """Return a config with ``change(key, path)`` instead of each path of data that it names."""

    def changed(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: changed(inner, f"{key}.{name}") for name, inner in value.items()}
        return change(key, value) if _is_data(key.rpartition(".")[2], value) else value

    reward, collection = config.reward, config.reward.data_collection
    new: dict[str, Any] = {
        "terms": changed(reward.terms, "reward.terms"),
        "checkpoint_path": changed(reward.checkpoint_path, "reward.checkpoint_path"),
    }
    if reward.collect_data:
        paths = {name: getattr(collection, name) for name in ("positive_dir", "negative_dir")}
        paths = changed(paths, "reward.data_collection")
        new["data_collection"] = collection.model_copy(update=paths)
    policy = changed(config.policy, "policy")
    return config.model_copy(update={"policy": policy, "reward": reward.model_copy(update=new)})


def _is_data(name: str, value: Any) -> bool:
    if not isinstance(value, str) or not value:
        return False
    if name in _WRITTEN:
        return True
    return (name.endswith(("_path", "_dir")) or name in ("init_from", "expert")) and (
        Path(value).exists()
    )


def named_files(config: GuerdonConfig) -> dict[str, str]:
    """Return the files and folders that the environments, policy and reward of a config name."""
    values = config.model_dump(include={"env", "policy", "reward", "imports"})
    texts = [text for _, text in leaves(values) if isinstance(text, str)]
    paths = {_path(text) for text in texts if is_path(_path(text))}
    return {
        path: f"{hashlib.sha256(path.encode()).hexdigest()[:8]}/{Path(path).name}"
        for path in sorted(paths)
        if Path(path).exists()
    }


def _path(text: str) -> str:
    """Return the path of ``path`` or ``path.py:Name``."""
    path, _, name = text.rpartition(":")
    return path if path.endswith(".py") and name.replace(".", "").isidentifier() else text


@contextmanager
def copied(files: Files) -> Iterator[str]:
    """Copy the files to a folder for Ray to ship; of folders with code, the code alone."""
    with tempfile.TemporaryDirectory(prefix="guerdon-") as folder:
        for path, name in files.items():
            target = Path(folder, name)
            target.parent.mkdir()
            if Path(path).is_dir():
                shutil.copytree(path, target, ignore=_no_code if _has_code(path) else None)
            else:
                shutil.copy2(path, target)
        yield folder


def _has_code(folder: str) -> bool:
    return any(Path(folder).glob("*.py")) or any(Path(folder).glob("*/__init__.py"))


def _no_code(folder: str, names: list[str]) -> list[str]:
    own = {name for name in names if name.endswith(".py")}
    own |= {name for name in names if Path(folder, name, "__init__.py").is_file()}
    return [name for name in names if name not in own]


def with_copies(values: Any, files: Files) -> Any:
    """Return values, such as a config, with the paths of copies."""
    if isinstance(values, BaseModel):
        new = {
            name: with_copies(getattr(values, name), files) for name in type(values).model_fields
        }
        return values.model_copy(update=new)
    if isinstance(values, dict):
        return {key: with_copies(value, files) for key, value in values.items()}
    if isinstance(values, list):
        return [with_copies(value, files) for value in values]
    if not isinstance(values, str) or (path := _path(values)) not in files:
        return values
    return files[path] + values[len(path) :]
