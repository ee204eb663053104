"""Packages that are imported where they are used."""

import subprocess
import sys

import numpy as np
import pytest

from guerdon.data import kernels
from guerdon.extras import MissingExtraError, require


def test_an_installed_module_is_imported():
    assert require("json.decoder", "lab").__name__ == "json.decoder"


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_a_missing_package_names_the_extra(module):
    with pytest.raises(
        MissingExtraError, match=r"'no_such_package'.*pip install 'guerdon\[minari\]'"
    ):
        require(module, "minari")
    assert issubclass(MissingExtraError, ImportError)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("import what_it_needs", ModuleNotFoundError, "No module named 'what_it_needs'"),
        ("from json import what_it_needs", ImportError, "cannot import name 'what_it_needs'"),
        ("raise ImportError('its driver is too old')", ImportError, "its driver is too old"),
        ("raise RuntimeError('no display')", RuntimeError, "no display"),
    ],
)
def test_an_installed_package_that_fails_shows_its_own_error(
    tmp_path, monkeypatch, source, error, message
):
    name = "installed_but_broken"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match=message) as caught:
        require(name, "lab")
    assert not isinstance(caught.value, MissingExtraError)


def test_a_missing_part_of_an_installed_package_is_not_a_missing_extra(tmp_path, monkeypatch):
    package = tmp_path / "installed_package"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"installed_package\.part") as caught:
        require("installed_package.part", "lab")
    assert not isinstance(caught.value, MissingExtraError)


def test_numba_is_imported_by_the_first_call():
    code = (
        "import sys, guerdon.training.run, numpy as np\n"
        "from guerdon.data import kernels\n"
        "assert 'numba' not in sys.modules\n"
        "print(kernels.following(np.array([2]), 3), 'numba' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[0] True\n"


def test_compiled_functions_replace_themselves():
    first = kernels.following
    assert first(np.array([0, 2]), 3).tolist() == [1, 0]
    assert type(kernels.following).__name__ == "CPUDispatcher"
    assert first(np.array([0, 2]), 3).tolist() == [1, 0]
