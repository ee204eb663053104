"""Copies of small data in a run folder, so that the run can be resumed and probed anywhere."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from guerdon.config import GuerdonConfig
from guerdon.config.files import with_data
from guerdon.config.sources import DATA
from guerdon.data.preferences import parts_of
from guerdon.limits import read_bytes
from guerdon.training.parts import uses_demonstrations

LARGEST = 16 * 2**20
"""Bytes of data that a run copies; of larger data, it names the path."""


def data_to_copy(config: GuerdonConfig) -> dict[str, str]:
    """Return the paths of small data that a run has read, with the names of their copies."""
    names: dict[str, str] = {}

    def add(key: str, path: str) -> str:
        keys = key.split(".")
        if keys[-1] == "expert_data_path":
            is_read = keys[0] == "policy" or uses_demonstrations(config, keys[2])
        else:
            is_read = keys[-1] == "preferences_path"
        if is_read and (digest := _digest(_parts(Path(path)))):
            names[path] = f"{DATA}/{digest}/{Path(path).name}"
        return path

    with_data(config, add)
    return names


def copy_data(names: Mapping[str, str], folder: Path) -> None:
    """Copy data to a run folder; see `data_to_copy`."""
    for path, name in names.items():
        target = (folder / name).parent
        target.mkdir(parents=True, exist_ok=True)
        for part in _parts(Path(path)):
            copy: Callable[..., object] = shutil.copytree if part.is_dir() else shutil.copyfile
            copy(part, target / part.name)


def with_copies_in(config: GuerdonConfig, names: Mapping[str, str], folder: Path) -> GuerdonConfig:
    """Return a config that names the copies in a run folder."""
    root = folder.resolve()
    return with_data(config, lambda _, path: str(root / names[path]) if path in names else path)


def _parts(path: Path) -> list[Path]:
    return parts_of(path) if path.suffix == ".jsonl" else [path]


def _digest(parts: list[Path]) -> str | None:
    """Return a short checksum; None if the files are large, or some are links or special files."""
    files = {part.name: part for part in parts if not part.is_dir()}
    for folder in (part for part in parts if part.is_dir()):
        files |= {f"{folder.name}/{file.relative_to(folder)}": file for file in folder.rglob("*")}
    if any(file.is_symlink() or not (file.is_file() or file.is_dir()) for file in files.values()):
        return None
    if sum(file.stat().st_size for file in files.values() if file.is_file()) > LARGEST:
        return None
    digest = hashlib.sha256()
    for name, file in sorted(files.items()):
        content = read_bytes(file) if file.is_file() else b""
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    return digest.hexdigest()[:8] if files else None
