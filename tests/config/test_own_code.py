"""Code of the user's own: from the current folder, from another one, and from a script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from guerdon.config import ConfigError, compose, imports, to_yaml
from guerdon.config.imports import find_object, name_of

ENV = """
import gymnasium
from helper import LENGTH

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.place = 0, self.np_random.normal(size=1).astype("float32")
        return self.place, {}

    def step(self, act):
        self.time, self.place = self.time + 1, self.place + (0.5 if act else -0.5)
        return self.place, -abs(float(self.place[0])), False, self.time >= LENGTH, {}
"""
RULE = """
def near(batch):
    return -abs(batch.obs_next[..., 0])
"""
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.actor, self.value = nn.Linear(1, 2), nn.Linear(1, 1)

    def forward(self, obs):
        return {"logit": self.actor(obs), "value": self.value(obs).squeeze(-1)}
"""
SCRIPT = """
import guerdon
from envs.walk import Walk
from guerdon.policy import PPO, register_policy

@register_policy("mine")
class Mine(PPO):
    "My own."

if GUARD:
    print(guerdon.train(
        env=Walk, policy="mine", run={"dir": "run", "max_steps": 64}, collect={"n_step": 64},
        eval={"every": 64, "episodes": 1}, display="none",
    ))
"""
SHORT = ["run.max_steps=64", "collect.n_step=64", "eval.every=64", "eval.episodes=1"]
OWN = ["env.id=walk:Walk", "reward=function", "reward.target=rule:near"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, which is the current one; what is imported from it is forgotten."""
    folder = tmp_path / "mine"
    (folder / "envs").mkdir(parents=True)
    for name, text in {
        "walk.py": ENV,
        "helper.py": "LENGTH = 20",
        "rule.py": RULE,
        "net.py": NET,
        "envs/__init__.py": "",
        "envs/walk.py": ENV.replace("helper", "envs.size"),
        "envs/size.py": "LENGTH = 10",
    }.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(imports, "_searched", set())
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def run(*words, cwd):
    """Run a command as users do: the current folder is not on the path of the `guerdon` script."""
    program = [str(Path(sys.executable).with_name("guerdon"))] if words[0] != "python" else []
    words = [*program, *words] if program else [sys.executable, *words[1:]]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env["PYTHONPATH"] = str(Path(imports.__file__).parents[2])
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_a_run_with_code_of_the_current_folder_is_found_from_another_one(folder, tmp_path):
    trained = run(
        "train", *OWN, "policy.model.type=net:Net", *SHORT, "run.dir=run", "--display=none",
        cwd=folder,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    assert compose(folder / "run").imports == [str(folder)]
    played = run("eval", "mine/run", "--episodes=1", cwd=tmp_path)
    assert "length 20.0" in played.stdout, played.stderr
    resumed = run("train", "--resume=mine/run", "run.max_steps=128", "--display=none", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


def test_a_policy_registered_in_a_script_is_found_again(folder, tmp_path):
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("GUARD", "__name__ == '__main__'"))
    trained = run("python", "script.py", cwd=folder)
    assert trained.stdout.startswith("Result(Mine"), trained.stderr
    assert str(script) in (folder / "run" / "config.yaml").read_text()
    played = run("eval", "mine/run", "--episodes=1", cwd=tmp_path)
    assert "length 10.0" in played.stdout, played.stderr
    script.write_text(SCRIPT.replace("GUARD", "True"))
    played = run("eval", "mine/run", "--episodes=1", cwd=tmp_path)
    assert played.returncode
    assert "script.py calls train while it is imported: put the call under" in played.stderr
    assert "__main__" in played.stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("env.id=walk:Run", "'env.id' has 'walk:Run', but the module 'walk' has no 'Run'"),
        ("env.id=walk.py:Run", "walk.py' has no 'Run'"),
        ("env.id=gone:Walk", "'env.id' names the module 'gone', which cannot be imported"),
        ("env.id=gone.py:Walk", "'env.id' names the file 'gone.py', which is not there"),
        ("env.wrappers=[rule:wrap]", "'env.wrappers' has 'rule:wrap', but the module 'rule'"),
        ("reward.target=rule:far", "'reward.target' has 'rule:far', but the module 'rule'"),
        ("reward.target=rule.py:far", "rule.py' has no 'far'"),
        ("policy.model.type=net:Nets", "'policy.model.type' has 'net:Nets', but the module 'net'"),
        ("policy.model.type=nets:Net", "'policy.model.type' names the module 'nets'"),
        ("policy.type=net:Policy", "'policy.type' has 'net:Policy', but the module 'net'"),
    ],
)
def test_code_that_is_not_there_is_an_error_before_the_run(override, error):
    with pytest.raises(ConfigError) as raised:
        compose(None, [*OWN, override])
    assert error in str(raised.value)


def test_every_key_that_names_code_takes_modules_and_files(folder):
    named = {"env.id": "walk:Walk", "reward.target": "rule:near", "policy.model.type": "net:Net"}
    for dot_py in ("", ".py"):
        texts = [f"{key}={name.replace(':', f'{dot_py}:')}" for key, name in named.items()]
        config = compose(None, ["reward=function", *texts])
        assert config.imports == ([str(folder)] if not dot_py else [])
    assert config.env.id == f"{folder / 'walk.py'}:Walk"
    assert compose(None, ["env.id=envs.walk:Walk"]).imports == [str(folder)]
    assert compose(None, [*OWN, "imports=[rule.py]"]).imports == [
        str(folder / "rule.py"), str(folder)
    ]  # fmt: skip


def test_a_module_that_trains_when_it_is_imported_is_refused(folder):
    (folder / "trains.py").write_text("import guerdon\nguerdon.train('cartpole_ppo')\n")
    with pytest.raises(ConfigError, match=r"^trains calls train while it is imported: put the"):
        compose(None, ["env.id=trains:Env"])


def test_files_of_one_name_are_two_modules(folder):
    found = []
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "same.py").write_text(f"class Env:\n    place = {name!r}\n")
        found.append(find_object(f"{name}/same.py:Env", "env.id"))
    assert [env.place for env in found] == ["one", "two"]
    assert name_of(found[0]) == f"{folder / 'one' / 'same.py'}:Env"
    assert find_object("one/same.py:Env", "env.id") is found[0]


def test_a_package_without_init_is_recorded(folder):
    (folder / "plain").mkdir()
    (folder / "plain" / "walk.py").write_text(ENV.replace("helper", "envs.size"))
    assert compose(None, ["env.id=plain.walk:Walk"]).imports == [str(folder)]


def test_a_file_behind_an_installed_module_is_named(folder):
    (folder / "json.py").write_text(ENV)
    with pytest.raises(ConfigError, match=r"no 'Walk' \(it is .*; for yours write 'json\.py:Walk'"):
        compose(None, ["env.id=json:Walk"])


def test_modules_that_register_environments_are_recorded_with_whole_paths(folder):
    (folder / "registers.py").write_text("")
    config = compose(None, ["env=cartpole", "env.imports=[registers.py]"])
    assert config.env.imports == [str(folder / "registers.py")]


@pytest.mark.usefixtures("folder")
def test_a_callback_has_to_be_a_class_or_a_function():
    with pytest.raises(ConfigError, match="is 'helper:LENGTH', which is no class or function"):
        compose(None, ["env=cartpole", "run.callback=helper:LENGTH"])


def test_names_of_objects(folder):
    walk = find_object("walk.py:Walk", "env.id")
    assert name_of(walk) == f"{folder / 'walk.py'}:Walk"
    assert name_of(Path.cwd) == "pathlib:Path.cwd"
    assert name_of(walk().reset) is None  # of one object
    assert name_of(lambda: walk) is None

    def inner():
        return walk

    assert name_of(inner) is None


@pytest.mark.usefixtures("folder")
def test_a_lambda_of_a_run_has_to_be_passed_again():
    config = compose({"env": "cartpole", "reward": {"type": "function", "target": lambda _: 0}})
    text = to_yaml(config)
    Path("run").mkdir()
    Path("run/config.yaml").write_text(text)
    target = compose("run").reward.terms["function"]["target"]
    with pytest.raises(ConfigError, match="was passed as an object without a file"):
        find_object(target, "reward.target")
