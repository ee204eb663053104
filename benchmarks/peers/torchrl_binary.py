"""TorchRL's compiled part, which its wheel has for one version of torch only.

Its prioritized sampler needs it. Where it does not load, it is built once from the sources that
come with the wheel, as TorchRL's maintainers advise, if there is a compiler.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch

_MODULE = "torchrl._torchrl"


@functools.cache
def problem() -> str | None:
    """Why there is no compiled part, or None if there is."""
    spec = importlib.util.find_spec("torchrl")
    if spec is None or not spec.submodule_search_locations:
        return "not installed"
    package = Path(spec.submodule_search_locations[0])
    shipped = next(package.glob("_torchrl*.so"), None)
    if shipped and _loads(shipped):
        return None
    version = f"torch{torch.__version__}-{sys.implementation.cache_tag}"
    built = Path(sys.prefix) / "share" / "guerdon-benchmarks" / version / "_torchrl.so"
    try:
        if not built.exists():
            _build(package, built)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"its wheel is for another torch, and could not be built for this one: {error}"
    return None if _loads(built) else "its wheel is for another torch"


def ensure() -> None:
    """Loads the compiled part, if that is possible, so that torchrl finds it."""
    problem()


def _loads(path: Path) -> bool:
    loader = importlib.machinery.ExtensionFileLoader(_MODULE, str(path))
    spec = importlib.util.spec_from_file_location(_MODULE, path, loader=loader)
    try:
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        loader.exec_module(module)
    except ImportError:
        return False
    sys.modules[_MODULE] = module
    return True


def _build(package: Path, target: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    compiler = shutil.which("c++")
    if compiler is None:
        raise OSError("there is no C++ compiler")
    print("Building TorchRL's compiled part for this torch: two minutes, once.", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".part")
    sources = [package / "csrc" / name for name in ("pybind.cpp", "utils.cpp")]
    includes = [*include_paths(), sysconfig.get_path("include")]
    command = [compiler, "-O3", "-std=c++20", "-fPIC", "-shared"]
    command += ["-DTORCH_EXTENSION_NAME=_torchrl", *map(str, sources)]
    command += [f"-I{path}" for path in includes] + [f"-L{path}" for path in library_paths()]
    command += ["-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python", "-o", str(temporary)]
    subprocess.run(command, check=True, capture_output=True)
    temporary.rename(target)
