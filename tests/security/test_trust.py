"""Code that a run directory names is run only for the user who made the run, or with --trust."""

import importlib
import json
import os
import py_compile
import shutil
import socket
import subprocess
import sys
from itertools import product

import pytest
import yaml

import guerdon
from guerdon.compat.di_engine.worker import create_workers
from guerdon.config.trust import UntrustedCodeError, _record
from guerdon.data.loading import load_demonstrations
from guerdon.entry import compose, serial_pipeline
from guerdon.envs import make_vec
from tests.cli.tiny import BUDGET, train
from tests.cli.tiny import guerdon as command

CODE = """
from pathlib import Path

import gymnasium

Path(__file__).with_name("ran").touch()


def env(**kwargs):
    return gymnasium.make("CartPole-v1")


def wrapper(env):
    return env


def score(batch):
    return batch.rew


def callback(step, metrics, policy):
    return True
"""
VERBS = (
    ("eval", "RUN"),
    ("explain", "RUN"),
    ("explain", "policy.gamma", "RUN"),
    ("collect", "RUN", "--out", "OUT", "--episodes", "1"),
    ("reward", "collect", "RUN", "--out", "OUT", "--episodes", "1"),
    ("reward", "probe", "RUN", "--episodes", "1", "--steps", "0"),
    ("train", "--resume", "RUN", "run.max_steps=384"),
    ("train", "RUN", "run.dir=OUT"),
    ("train", "cartpole_ppo", "--from-reward", "RUN", *BUDGET, "run.dir=OUT"),
    ("-m", "eval", "-c", "RUN"),
    ("-m", "serial", "-c", "RUN"),
    ("export", "RUN", "--onnx", "OUT.onnx"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust") / "run"
    train(folder, "reward.clip=[-1,1]", source="cartpole_ppo_gail")
    return folder


@pytest.fixture
def stranger(made, tmp_path, monkeypatch):
    """A copy of a run, to be changed, and a file of code inside it."""
    folder = tmp_path / "downloaded" / "run"
    shutil.copytree(made, folder)
    (folder / "evil.py").write_text(CODE)
    info = folder / "run.json"
    info.write_text(info.read_text().replace('"host": "', '"host": "other-'))
    monkeypatch.chdir(tmp_path)
    return folder


def change(folder, **sections):
    """Writes to a run's config; a dictionary is merged into its section."""
    file = folder / "config.yaml"
    values = yaml.safe_load(file.read_text())
    for name, value in sections.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    file.write_text(yaml.safe_dump(values))


def call(verb, folder):
    words = (word.replace("RUN", str(folder)).replace("OUT", str(folder) + "_out") for word in verb)
    return command(*words)


def ran(folder):
    return (folder / "ran").exists()


def named_in_reward(folder):
    """Also names the code in the options beside the saved reward, with their checksum."""
    change_reward(folder, imports=[str(folder / "evil.py")])


def change_reward(folder, **options):
    """Changes the options beside the saved reward, with their checksum."""
    from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint

    state, step = load_checkpoint(folder / "reward")
    assert checkpoint_steps(folder / "reward") == [step]
    state["options"].update(options)
    shutil.rmtree(folder / "reward")
    (folder / "reward").mkdir()
    save_checkpoint(folder / "reward", step, state, keep=1)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_command_imports_the_code_of_a_stranger(stranger, verb):
    change(stranger, imports=["./evil.py"])
    named_in_reward(stranger)
    result = call(verb, stranger)
    assert result.exit_code == 2, result.output
    assert not ran(stranger)
    assert str(stranger / "evil.py") in result.output
    assert "--trust" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("verb", [VERBS[0], VERBS[1], VERBS[6], VERBS[8]], ids=" ".join)
def test_trust_runs_it(stranger, verb):
    change(stranger, imports=["./evil.py"])
    named_in_reward(stranger)
    result = call((*verb, "--trust"), stranger)
    assert result.exit_code == 0, result.output
    assert ran(stranger)


KEYS = {
    "env.id": {"env": {"id": "FILE:env"}},
    "process": {"env": {"id": "subprocess:Popen", "kwargs": {"args": ["touch", "ran"]}}},
    "loader": {
        "env": {"id": "guerdon.config.imports:run_file", "kwargs": {"path": "FILE"}},
    },
    "file without an ending": {"env": {"id": "DIR/evil:env"}},
    "env.imports": {"env": {"imports": ["FILE"]}},
    "env.wrappers": {"env": {"wrappers": ["FILE:wrapper"]}},
    "env.eval.id": {"env": {"eval": {"id": "FILE:env"}}},
    "env.eval.imports": {"env": {"eval": {"imports": ["FILE"]}}},
    "policy.type": {"policy": {"type": "FILE:env"}},
    "policy.model": {"policy": {"model": {"type": "FILE:env"}}},
    "reward": {"reward": {"terms": {"function": {"target": "FILE:score"}}}},
    "reward.type": {"reward": {"terms": {"mine": {"type": "FILE:score"}}}},
    "callback": {"run": {"callback": "FILE:callback"}},
    "expert": {"reward": {"terms": {"gail": {"expert_data_path": "expert:FILE"}}}},
    "entry point": {
        "env": {"id": "FetchReach-v4", "kwargs": {"entry_point": "FILE:env"}},
    },
    "setting": {"env": {"id": "FetchReach-v4", "settings": [{"entry_point": "FILE:env"}]}},
    "env.eval.kwargs": {
        "env": {"eval": {"id": "FetchReach-v4", "kwargs": {"entry_point": "FILE:env"}}},
    },
    "another task": {"env": {"id": "PushCube-v1", "kwargs": {"task": "evil:PushCube-v1"}}},
    "program": {
        "env": {"id": "D1Basic-v1", "backend": "envpool", "kwargs": {"vzd_path": "evil"}},
    },
    "registered id": {"env": {"id": "evil:CartPole-v1"}, "imports": ["DIR"]},
}


# Of `expert`, an evaluation reads no demonstrations, and a resumed run has its own.
@pytest.mark.parametrize(
    ("verb", "key"),
    [*product((VERBS[0], VERBS[6]), sorted(KEYS.keys() - {"expert"})), (VERBS[7], "expert")],
)
def test_no_key_runs_the_code_of_a_stranger(stranger, verb, key):
    shutil.copy(stranger / "evil.py", stranger / "evil")
    text = json.dumps(KEYS[key]).replace("FILE", str(stranger / "evil.py"))
    change(stranger, **json.loads(text.replace("DIR", str(stranger))))
    result = call(verb, stranger)
    assert result.exit_code == 2, result.output
    assert not ran(stranger)
    assert not (stranger.parents[1] / "ran").exists()
    assert "add --trust" in result.output


def test_a_registration_keeps_its_entry_point(stranger):
    """Even without a check of names."""
    pytest.importorskip("gymnasium_robotics")
    with pytest.raises(ValueError, match="'FetchReach-v4' has no argument 'entry_point'"):
        make_vec("FetchReach-v4", kwargs={"entry_point": f"{stranger}/evil.py:env"})
    assert not ran(stranger)


def test_an_argument_that_names_code_in_a_run_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    train(tmp_path / "run", "env.id=mine.py:env", "env.kwargs={other: 'mine.py:wrapper'}")
    assert command("eval", tmp_path / "run").exit_code == 0
    change(tmp_path / "run", env={"kwargs": {"other": "json:loads"}, "backend": "subprocess"})
    result = command("eval", tmp_path / "run")
    assert result.exit_code == 2
    assert "would run this code: json:loads." in result.output


def test_all_code_is_listed(stranger):
    change(stranger, imports=["./evil.py"], env={"wrappers": ["json:loads"]})
    result = call(VERBS[0], stranger)
    assert f"would run this code: {stranger / 'evil.py'}, json:loads. Look" in result.output


def test_names_that_are_not_code_need_no_trust(stranger):
    change(stranger, run={"name": "12:30"}, env={"kwargs": {"render_mode": None}})
    assert call(VERBS[0], stranger).exit_code == 0


def test_python_refuses_it_too(stranger):
    change(stranger, imports=["./evil.py"])
    for load in (guerdon.load_policy, guerdon.load_reward, compose, serial_pipeline, guerdon.train):
        with pytest.raises(UntrustedCodeError, match=r"trust=True"):
            load(stranger)
    with pytest.raises(UntrustedCodeError):
        guerdon.train(resume=stranger)
    assert not ran(stranger)
    assert guerdon.load_policy(stranger, trust=True).predict([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert ran(stranger)


def test_workers_of_a_loop_by_hand_need_trust_too(stranger):
    change(stranger, imports=["./evil.py"], policy={"type": "dqn"})
    with pytest.raises(UntrustedCodeError):
        create_workers(stranger)
    assert not ran(stranger)


def test_a_cluster_of_a_stranger_is_not_joined(stranger):
    """Ray unpickles what a cluster sends."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as cluster:
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        change(stranger, runtime={"type": "ray", "address": address})
        words = ["-m", "guerdon", "train", stranger, f"run.dir={stranger}_out"]
        # In a process of its own: one that has started Ray does not join another cluster.
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert f"would run this code: {address}." in " ".join(done.stderr.split())
        cluster.setblocking(False)
        with pytest.raises(BlockingIOError):
            cluster.accept()


# --- runs of one's own


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A run of this user with code of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    train(tmp_path / "run", "env.id=mine.py:env")
    return tmp_path / "run"


def test_code_of_ones_own_runs_without_trust(own, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command("eval", own).exit_code == 0
    moved = own.rename(tmp_path / "moved")
    assert command("eval", moved).exit_code == 0
    assert command("train", "--resume", moved, "run.max_steps=384").exit_code == 0


@pytest.mark.filterwarnings("always")
def test_a_changed_file_runs_with_a_notice(own, tmp_path):
    (tmp_path / "mine.py").write_text(CODE + "\n# changed\n")
    result = command("eval", own)
    assert result.exit_code == 0, result.output
    assert f"Warning: {tmp_path / 'mine.py'} has changed since {own} was made" in result.output


def test_a_changed_file_inside_a_run_needs_trust(tmp_path):
    inside = tmp_path / "run" / "mine.py"
    inside.parent.mkdir()
    inside.write_text(CODE)
    train(tmp_path / "run", f"env.id={inside}:env")
    assert command("eval", tmp_path / "run").exit_code == 0
    inside.write_text(CODE + "\n# changed\n")
    result = command("eval", tmp_path / "run")
    assert result.exit_code == 2
    assert f"{inside}, inside of a run, or what it can import there, has changed" in result.output
    assert command("eval", tmp_path / "run", "--trust").exit_code == 0


HELPED = CODE.replace("return env\n", "import helper\n\n    return env\n")
FORGED = "from pathlib import Path\n\nPath(__file__).with_name('forged').touch()\n"


@pytest.fixture
def helped(tmp_path, monkeypatch):
    """A run of this user with code inside, which imports other code inside."""
    folder = tmp_path / "run"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "mine.py").write_text(HELPED)
    (folder / "code" / "helper.py").write_text(" " * len(FORGED))
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")
    train(folder, f"env.wrappers=[{folder}/code/mine.py:wrapper]")
    forget(folder)
    return folder


def forget(folder):
    """Unloads the code of a run, as a new process would."""
    for name, module in [*sys.modules.items()]:
        if str(folder) in str(getattr(module, "__file__", None)):
            del sys.modules[name]
    importlib.invalidate_caches()


def compile_forged(folder):
    """Writes a compiled file that looks current for the helper."""
    helper = folder / "code" / "helper.py"
    honest, times = helper.read_text(), helper.stat()
    helper.write_text(FORGED)
    os.utime(helper, (times.st_atime, times.st_mtime))
    py_compile.compile(str(helper), doraise=True)
    helper.write_text(honest)
    os.utime(helper, (times.st_atime, times.st_mtime))


def replace_by_link(folder):
    (folder / "elsewhere").write_text(FORGED)
    (folder / "code" / "helper.py").unlink()
    (folder / "code" / "helper.py").symlink_to("../elsewhere")


FORGERIES = {
    "changed": lambda folder: (folder / "code" / "helper.py").write_text(FORGED),
    "new": lambda folder: (folder / "code" / "other.py").write_text(FORGED),
    "without source": lambda folder: (folder / "code" / "other.pyc").write_bytes(b"forged"),
    "library": lambda folder: (folder / "code" / "other.so").write_bytes(b"forged"),
    "linked folder": lambda folder: (folder / "code" / "other").symlink_to("/tmp"),
    "linked file": replace_by_link,
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_code_inside_a_run_imports_is_compared_too(name, helped):
    assert command("eval", helped, "--episodes", "1").exit_code == 0
    forget(helped)
    FORGERIES[name](helped)
    result = command("eval", helped, "--episodes", "1")
    assert result.exit_code == 2, result.output
    assert "inside of a run, or what it can import there, has changed" in result.output
    assert not (helped / "code" / "forged").exists()
    assert command("eval", helped, "--episodes", "1", "--trust").exit_code == 0


def test_compiled_files_inside_a_run_are_not_read(helped):
    compile_forged(helped)
    result = command("eval", helped, "--episodes", "1")
    assert result.exit_code == 0, result.output
    assert not (helped / "code" / "forged").exists()


def test_other_code_in_a_run_of_ones_own_needs_trust(own):
    change(own, env={"wrappers": ["json:loads"]})
    result = command("eval", own)
    assert result.exit_code == 2
    assert "would run this code: json:loads." in result.output


def test_a_module_of_another_file_needs_trust(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_module_a.py").write_text(CODE)
    train(tmp_path / "run", "env.id=own_module_a:env")
    record = _record(tmp_path / "run")
    values = json.loads(record.read_text())
    values["code"]["own_module_a:env"]["file"] = "/another/own_module_a.py"
    record.write_text(json.dumps(values))
    assert command("eval", tmp_path / "run").exit_code == 2


def test_what_the_user_names_on_resume_is_theirs(made, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(made, folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    changes = ("run.max_steps=384", "imports=mine.py", "run.callback=mine.py:callback")
    result = command("train", "--resume", folder, *changes)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "ran").exists()


def test_a_config_file_that_the_user_names_is_theirs(stranger):
    change(stranger, imports=["./evil.py"])
    assert command("explain", stranger / "config.yaml").exit_code == 0
    assert ran(stranger)


def test_a_folder_does_not_hide_a_preset(stranger, tmp_path):
    change(stranger, imports=["./evil.py"], policy={"gamma": 0.5})
    shutil.copytree(stranger, tmp_path / "cartpole_ppo")
    result = command("explain", "cartpole_ppo", "--full")
    assert result.exit_code == 0, result.output
    assert "gamma: 0.5" not in result.output
    assert command("explain", "./cartpole_ppo").exit_code == 2


# --- interpolations

READING = (*VERBS, ("report", "RUN"), ("plot", "RUN", "--out", "OUT.png"))


@pytest.fixture
def secret(monkeypatch):
    monkeypatch.setenv("SECRET", "of-this-user")
    return "of-this-user"


def written(folder):
    """The texts of all files beside a folder."""
    files = [each for each in folder.parents[1].rglob("*") if each.is_file()]
    return [file.read_bytes().decode(errors="replace") for file in files]


@pytest.mark.parametrize("verb", READING, ids=" ".join)
def test_no_command_resolves_interpolations_of_a_stranger(verb, stranger, secret):
    change(stranger, run={"name": "${oc.env:SECRET}"})
    if "--from-reward" in verb:
        change_reward(stranger, reward={"terms": {"gail": {"type": "${oc.env:SECRET}"}}})
    for more in ((), ("--trust",) if verb[0] in ("eval", "train", "explain") else ()):
        result = call((*verb, *more), stranger)
        assert result.exit_code == 2, result.output
        assert "has the interpolation '${oc.env:SECRET}' in '" in result.output
        assert "write the value in its place" in result.output
        assert secret not in result.output
        assert not any(secret in text for text in written(stranger))


FORMS = {
    "of the environment": "${oc.env:SECRET}",
    "inside a text": "a ${oc.env:SECRET} b",
    "nested": "${oc.decode:${oc.env:SECRET}}",
    "through a name": "${${oc.env:SECRET}}",
    "escaped": "\\${oc.env:SECRET}",
    "escaped backslash": "\\\\${oc.env:SECRET}",
    "created": "${oc.create:${oc.env:SECRET}}",
    "with a default": "${oc.env:SECRET,null}",
    "with blanks": "${ oc.env : SECRET }",
    "other resolver": "${hydra:runtime.cwd}",
    "other key": "${seed}",
    "code": "${run.name}:env",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("key", ["name", "kwargs", "list", "a key"])
def test_no_form_is_resolved(text, key, stranger, secret):
    places = {
        "name": {"run": {"name": text}},
        "kwargs": {"env": {"kwargs": {"a": {"b": text}}}},
        "list": {"env": {"wrappers": [text]}},
        "a key": {"reward": {"terms": {text: {"type": "constant"}}}},
    }
    change(stranger, **places[key])
    with pytest.raises(guerdon.config.ConfigError) as raised:
        guerdon.config.compose(stranger)
    assert "interpolation" in str(raised.value)
    assert secret not in str(raised.value)


@pytest.mark.usefixtures("secret")
def test_options_beside_a_saved_reward_and_the_config_of_a_fit_are_not_resolved(stranger, tmp_path):
    change_reward(stranger, imports=["${oc.env:SECRET}"])
    with pytest.raises(guerdon.config.ConfigError, match="has the interpolation"):
        guerdon.train("cartpole_ppo", from_reward=stranger)
    (tmp_path / "fit").mkdir()
    (tmp_path / "fit" / "fit.yaml").write_text("reward: {save_dir: '${oc.env:SECRET}'}\n")
    result = command("reward", "fit", "--resume", tmp_path / "fit")
    assert result.exit_code == 2
    assert "fit.yaml has the interpolation '${oc.env:SECRET}'" in result.output


@pytest.mark.usefixtures("secret")
def test_an_expert_of_a_stranger_is_not_resolved(stranger):
    file = stranger / "expert.yaml"
    file.write_text("{env: cartpole, policy: ppo, run: {name: '${oc.env:SECRET}'}}")
    change(stranger, reward={"terms": {"gail": {"expert_data_path": f"expert:{file}"}}})
    result = call(VERBS[7], stranger)
    assert result.exit_code == 2
    assert f"would run this code: {file}" in result.output


@pytest.mark.parametrize("where", ["override", "file"])
def test_a_run_of_ones_own_stores_what_an_interpolation_stands_for(where, tmp_path, secret):
    text = "${oc.env:SECRET}"
    if where == "file":
        (tmp_path / "mine.yaml").write_text(f"{{env: cartpole, run: {{name: '{text}'}}}}")
        train(tmp_path / "run", source=tmp_path / "mine.yaml")
    else:
        train(tmp_path / "run", f"run.name={text}")
    stored = (tmp_path / "run" / "config.yaml").read_text()
    assert yaml.safe_load(stored)["run"]["name"] == secret
    assert "${" not in stored
    result = command("train", "--resume", tmp_path / "run", "run.max_steps=384")
    assert result.exit_code == 0, result.output


def test_what_a_run_could_not_be_resumed_with_is_refused(monkeypatch):
    """A text that is an interpolation only once it has been composed."""
    monkeypatch.setenv("SECRET", "${seed}")
    for name in ("\\${seed}", "${oc.env:SECRET}"):
        with pytest.raises(guerdon.config.ConfigError, match="composed configuration has the inte"):
            compose("cartpole_ppo", [f"run.name={name}"])


# --- other ways to code


def test_the_core_compose_refuses_it_too(stranger):
    change(stranger, imports=["./evil.py"])
    with pytest.raises(UntrustedCodeError):
        guerdon.config.compose(stranger)
    assert not ran(stranger)


def test_an_expert_is_not_a_run_directory(stranger, tmp_path):
    change(stranger, imports=["./evil.py"])
    data = f"reward.expert_data_path=expert:{stranger}"
    result = command("train", "cartpole_fixed_ppo_gail", data, *BUDGET, f"run.dir={tmp_path}/new")
    assert result.exit_code == 2
    assert "names a folder: give a preset or a config file" in result.output
    assert not ran(stranger)


def test_a_dataset_of_minari_makes_no_environment(tmp_path):
    spec = {
        "id": "Evil-v0",
        "entry_point": "subprocess:Popen",
        "kwargs": {"args": ["touch", str(tmp_path / "ran")]},
        **dict.fromkeys(("reward_threshold", "max_episode_steps", "vector_entry_point")),
        **dict.fromkeys(("nondeterministic", "order_enforce"), False),
        "disable_env_checker": True,
        "additional_wrappers": [],
    }
    about = {
        "env_spec": json.dumps(spec),
        "data_format": "hdf5",
        "total_episodes": 1,
        "total_steps": 1,
        "dataset_id": "a/b-v0",
        "minari_version": "0.5.4",
    }
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="has no observation and action spaces"):
        load_demonstrations(tmp_path)
    assert not ran(tmp_path)
