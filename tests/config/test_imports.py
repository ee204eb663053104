"""What a configuration imports: files and modules that register things."""

import importlib
import pathlib
import subprocess
import sys

import cloudpickle
import gymnasium
import pytest

from guerdon.config import ConfigError, compose, registry_of, to_yaml
from guerdon.config.imports import find_object, import_all, run_file

POLICY = """
import builtins
from guerdon.config import registry_of
from tests.config import fakes

builtins.runs_of_mine = getattr(builtins, "runs_of_mine", 0) + 1

@registry_of("policy").register("mine")
class Mine(fakes.OnPolicy):
    "Mine."

main_config = {"env": "cartpole", "policy": "mine"}
"""


@pytest.fixture
def file(tmp_path, zoo, monkeypatch):  # noqa: ARG001 - its registry is that of this test alone
    monkeypatch.setattr("builtins.runs_of_mine", 0, raising=False)
    path = tmp_path / "policy_of_mine.py"
    path.write_text(POLICY)
    yield path
    for name in [name for name in sys.modules if name.startswith("guerdon_file_policy_of_mine")]:
        del sys.modules[name]


def runs():
    return importlib.import_module("builtins").runs_of_mine


def refused(call, *args):
    with pytest.raises(ConfigError) as error:
        call(*args)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- files


def test_a_file_that_registers_something_is_remembered(file, tmp_path):
    config = compose(file)
    assert config.imports == [str(file)]
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert compose(tmp_path / "config.yaml") == config
    assert runs() == 1  # it was there already
    assert compose(file) == config  # but a config is read anew
    assert runs() == 2


def test_a_file_that_registers_nothing_is_not(tmp_path):
    file = tmp_path / "plain_values.py"
    file.write_text("main_config = {'env': 'cartpole'}")
    config = compose(file)
    assert config.imports == []
    assert "\nimports:" not in to_yaml(config)


@pytest.mark.usefixtures("zoo")
def test_a_file_whose_function_is_a_value_is_remembered(tmp_path):
    file = tmp_path / "reward_of_mine.py"
    file.write_text(
        "def rule(batch):\n    return 7\n"
        "main_config = {'env': 'cartpole', 'reward': {'type': 'function', 'target': rule}}"
    )
    (tmp_path / "config.yaml").write_text(to_yaml(compose(file)))
    target = compose(tmp_path / "config.yaml").reward.terms["function"]["target"]
    assert target == f"{file}:rule"
    assert find_object(target, "reward.target")(None) == 7


@pytest.mark.usefixtures("zoo")
def test_a_file_that_registers_an_environment_is_remembered(tmp_path):
    file = tmp_path / "env_of_mine.py"
    file.write_text(
        "import gymnasium\n"
        "gymnasium.register('OfMine-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
        "main_config = {'env': {'id': 'OfMine-v0'}}"
    )
    try:
        assert str(file) in compose(file).imports
    finally:
        gymnasium.registry.pop("OfMine-v0", None)


def test_a_file_that_is_a_module_already_is_not_run_again(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    importlib.import_module("policy_of_mine")
    try:
        import_all([str(file)])
        assert runs() == 1
        compose(file)  # which registers the same class again
        assert runs() == 2
    finally:
        sys.modules.pop("policy_of_mine")


def test_a_file_that_changes_within_a_second_is_read_as_it_is(tmp_path):
    file = tmp_path / "changing.py"
    for number in range(3):
        file.write_text(f"value = {number}\n")
        assert run_file(file).value == number


def test_a_file_that_fails_leaves_no_module(tmp_path):
    file = tmp_path / "half.py"
    file.write_text("value = 1\n")
    before = run_file(file)
    file.write_text("value = 2\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        run_file(file)
    assert sys.modules[before.__name__] is before


def test_classes_of_a_file_travel_to_other_processes(tmp_path):
    file = tmp_path / "travelling.py"
    file.write_text("class Far:\n    number = 17\n")
    packed = cloudpickle.dumps(run_file(file).Far)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).number)"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, input=packed, capture_output=True, timeout=60, check=True)
    assert answer.stdout.strip() == b"17"


# --- where they are named


@pytest.mark.parametrize("place", ["file", "override", "mapping"])
def test_imports_can_be_written_by_hand(file, place, monkeypatch, tmp_path):
    source, overrides = None, ["policy=mine", "env=cartpole"]
    if place == "file":
        source = tmp_path / "folder" / "mine.yaml"
        source.parent.mkdir()
        source.write_text(f"imports: [../{file.name}, math]\nenv: cartpole\npolicy: mine\n")
        overrides = []
    else:
        monkeypatch.chdir(tmp_path)
        if place == "override":
            overrides.append(f"imports=[{file.name},math]")
        else:
            source = {"imports": [file.name, "math"]}
    config = compose(source, overrides)
    assert config.imports == [str(file), "math"]
    assert config.policy["type"] == "mine"


def test_a_single_import_needs_no_brackets(file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = compose(None, ["policy=mine", "env=cartpole", f"imports={file.name}"])
    assert config.imports == [str(file)]


def test_an_override_takes_the_place_of_imports_that_are_gone(file, tmp_path):
    source = {"imports": [str(tmp_path / "gone.py")], "env": "cartpole", "policy": "mine"}
    assert compose(source, [f"imports=[{file}]"]).imports == [str(file)]


# --- mistakes


def test_what_cannot_be_imported_is_named(tmp_path):
    gone, bad = tmp_path / "gone.py", tmp_path / "bad.py"
    bad.write_text("1 / 0")
    assert refused(import_all, [str(gone)]) == (
        f"'imports' names the file '{gone}', which is not there: put it back, or write where it is "
        "now (of a run, in its config.yaml)"
    )
    assert refused(import_all, [str(bad)]) == (
        f"the file '{bad}' of 'imports' fails with ZeroDivisionError: division by zero"
    )
    assert refused(import_all, ["no_such_module.x"], "env.imports").startswith(
        "'env.imports' names the module 'no_such_module.x', which cannot be imported (No module"
    )


@pytest.mark.usefixtures("zoo")
def test_what_is_no_list_of_names_is_refused():
    for value in (3, "a.py", [3]):
        assert refused(compose, {"env": "cartpole", "imports": value}).startswith("'imports")


def test_objects_are_found_by_name():
    assert find_object("pathlib:Path", "x") is pathlib.Path
    assert refused(find_object, "Path", "x") == (
        "'x' has 'Path': write 'package.module:Name' or 'path/to/file.py:Name'"
    )
    assert refused(find_object, "pathlib:Paht", "x") == (
        "'x' has 'pathlib:Paht', but the module 'pathlib' has no 'Paht'"
    )


def test_objects_are_found_in_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "folder" / "things.py"
    file.parent.mkdir()
    file.write_text("class Outer:\n    class Inner:\n        number = 17\n")
    assert find_object("folder/things.py:Outer.Inner", "x").number == 17
    assert find_object(f"{file}:Outer", "x") is find_object("folder/things.py:Outer", "x")
    assert refused(find_object, "folder/things.py:Nothing", "x") == (
        "'x' has 'folder/things.py:Nothing', but the file 'folder/things.py' has no 'Nothing'"
    )
    assert refused(find_object, "gone.py:Outer", "x").startswith(
        "'x' names the file 'gone.py', which is not there"
    )


def test_a_class_in_a_file_needs_no_name_and_the_run_remembers_it(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = POLICY.replace('@registry_of("policy").register("mine")', "")
    file.write_text(f"{text}\ndef rule(batch):\n    return 7\n")
    config = compose(
        "cartpole_ppo",
        [f"policy={file.name}:Mine", "reward=function", f"reward.target={file.name}:rule"],
    )
    assert config.policy["type"] == f"{file}:Mine"
    assert config.reward.terms["function"]["target"] == f"{file}:rule"
    assert config.run.name == "cartpole_Mine_function"
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    monkeypatch.chdir("/")
    assert compose(tmp_path / "config.yaml") == config
    assert registry_of("policy").get(config.policy["type"]).__name__ == "Mine"


def test_the_registry_of_these_tests_is_their_own():
    assert "mine" not in registry_of("policy").names()
