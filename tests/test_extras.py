"""Packages that are imported where they are used."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from guerdon import extras
from guerdon.data import kernels
from guerdon.extras import MissingExtraError, install_command, require

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_an_installed_module_is_imported():
    assert require("json.decoder", "lab").__name__ == "json.decoder"


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_a_missing_package_names_the_extra(module):
    with pytest.raises(
        MissingExtraError, match=r"'no_such_package'.*pip install -c \S+ --editable '?/.*\[minari\]"
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


def test_the_command_for_an_extra_installs_the_checkout_from_any_folder():
    *command, constraints, option, checkout = shlex.split(install_command("lab"))
    assert command == ["pip", "install", "-c"]
    assert option == "--editable"
    assert Path(constraints) == ROOT / "constraints.txt"
    assert checkout == f"{ROOT}[lab]"


def test_the_command_for_an_extra_without_a_checkout_says_where_it_works(tmp_path, monkeypatch):
    installed = tmp_path / "guerdon" / "extras.py"
    installed.parent.mkdir()
    shutil.copy(extras.__file__, installed)
    monkeypatch.setattr(extras, "__file__", str(installed))
    assert install_command("lab").startswith("in a checkout of guerdon, pip install")


def test_the_readme_names_all_extras():
    table = (ROOT / "README.md").read_text().partition("| extra | for |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))
    assert sorted(named) == sorted(EXTRAS.keys() - {"dev"})


def test_only_extras_that_exist_are_asked_for():
    asked = set()
    for path in (ROOT / "guerdon").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
                asked.add(getattr(node.args[1], "value", None))
    assert {"lab", "ray", "minari"} <= asked
    assert asked - {None} <= EXTRAS.keys()
