"""Registries, with real entry points of a real (temporary) package."""

import importlib
import subprocess
import sys

import pytest

from guerdon.config import ConfigError, registry
from guerdon.config.registry import Registry, registry_of


class Thing: ...


class Other: ...


@pytest.fixture
def things(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRIES", {})
    return Registry("gadgety", "tests.config.fakes")


def test_a_class_is_registered_by_decorator_and_by_call(things):
    decorated = things.register("thing")(Thing)
    assert decorated is Thing
    assert things.register("other", Other) is Other
    assert things.get("thing") is Thing
    assert things.get("other") is Other
    assert things.names() == ["other", "thing"]


def test_a_name_belongs_to_one_class(things):
    things.register("thing", Thing)
    with pytest.raises(ConfigError, match=r"gadgety 'thing' is tests\..*Thing already.*Other"):
        things.register("thing", Other)
    assert things.get("thing") is Thing
    things.register("thing", Other, override=True)
    assert things.get("thing") is Other


def test_the_same_class_can_be_registered_again_after_a_new_import(things):
    anew = type("Thing", (), {"__module__": Thing.__module__, "__qualname__": "Thing"})
    things.register("thing", Thing)
    things.register("thing", Thing)
    things.register("thing", anew)
    assert things.get("thing") is anew


def test_a_class_of_the_same_file_is_the_same_under_another_name_of_its_module(things, monkeypatch):
    script = type(sys)("as_a_script")
    script.__file__ = __file__
    monkeypatch.setitem(sys.modules, "as_a_script", script)
    again = type("Thing", (), {"__module__": "as_a_script", "__qualname__": "Thing"})
    things.register("thing", Thing)
    things.register("thing", again)
    assert things.get("thing") is again
    script.__file__ = pytest.__file__
    with pytest.raises(ConfigError, match="already"):
        things.register("thing", Thing)


def test_a_name_that_is_like_no_other_may_have_to_be_imported(things):
    things.register("thing", Thing)
    with pytest.raises(ConfigError, match=r"choose from thing, or add the file .* to 'imports'"):
        things.get("reinforce")


def test_an_unknown_name_is_answered_with_the_nearest(things):
    things.register("thing", Thing)
    with pytest.raises(ConfigError, match=r"unknown gadgety 'thign': did you mean 'thing'\?"):
        things.get("thign")


@pytest.mark.usefixtures("things")
def test_the_home_is_imported_when_a_name_is_asked_for(monkeypatch, tmp_path):
    (tmp_path / "the_home.py").write_text(
        "from guerdon.config import registry_of\n"
        "@registry_of('late').register('here')\n"
        "class Here: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    late = Registry("late", "the_home")
    assert "the_home" not in sys.modules
    assert late.get("here").__name__ == "Here"
    monkeypatch.delitem(sys.modules, "the_home")
    importlib.import_module("the_home")  # registers its class anew, without complaint


def test_a_registry_is_found_by_its_kind(things):
    assert registry_of("gadgety") is things


def test_rooms_make_their_registries_when_asked_for_and_torch_waits_until_then():
    code = (
        "import sys; from guerdon.config import registry_of\n"
        "assert not sys.modules.keys() & {'torch', 'numpy', 'gymnasium'}\n"
        "print(*registry_of('reward').names())"
    )
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert {"constant", "env", "function"} <= set(answer.stdout.split())


# --- other packages


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with an entry point for each case."""
    (tmp_path / "elsewhere.py").write_text("class Foreign:\n    pass\nnumber = 3\n")
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[guerdon.gadgeties]\n"
        "foreign = elsewhere:Foreign\nbroken = elsewhere_not_there:X\nnumber = elsewhere:number\n"
        "thing = elsewhere:Foreign\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("elsewhere", None)


@pytest.mark.usefixtures("package")
def test_entry_points_are_named_without_import_and_loaded_when_asked_for(things):
    things.register("mine", Thing)
    assert things.names() == ["broken", "foreign", "mine", "number", "thing"]
    assert "elsewhere" not in sys.modules
    assert things.get("foreign").__module__ == "elsewhere"
    assert things.get("foreign") is sys.modules["elsewhere"].Foreign


@pytest.mark.usefixtures("package")
def test_a_registered_name_goes_before_an_entry_point(things):
    things.register("thing", Thing)
    assert things.get("thing") is Thing


@pytest.mark.usefixtures("package")
def test_an_entry_point_that_cannot_be_used_is_named(things):
    with pytest.raises(ConfigError, match=r"'broken' .*elsewhere_not_there:X.* cannot be imported"):
        things.get("broken")
    with pytest.raises(ConfigError, match=r"'number' .* has to be a class, but is 3"):
        things.get("number")
