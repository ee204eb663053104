"""Errors on the command line: one sentence for what the user can mend, else a traceback."""

import errno
import shutil
import sys
import warnings

import numpy as np
import pytest

from guerdon.cli.errors import plain_warnings, sentence_of
from guerdon.config import ConfigError
from guerdon.extras import MissingExtraError, install_command
from tests.cli.tiny import guerdon, start, train


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "nothing to train: give a preset (`guerdon list presets` shows them)"),
        (["cartpole_pop"], "unknown preset 'cartpole_pop': did you mean 'cartpole_ppo'?"),
        (["cartpole_ppo", "policy.gama=1"], "unknown key 'policy.gama': did you mean 'gamma'?"),
        (["cartpole_ppo", "policy.gamma=2"], "'policy.gamma' is 2: it should be less than or"),
        (["cartpole_ppo", "learn.updates_per_collect=3"], "'learn.updates_per_collect' is 3, but"),
        (["cartpole_ppo", "imports=[no_such]"], "'imports' names the module 'no_such', which"),
        (["cartpole_ppo", "env.imports=[no_such]"], "'env.imports' names the module 'no_such'"),
        (["cartpole_ppo", "env.wrappers=[no_such:X]"], "'env.wrappers' names the module 'no_such'"),
        (["cartpole_ppo", "env.kwargs.nonsense=1"], "'CartPole-v1' has no argument 'nonsense'"),
        (["cartpole_ppo", "pendulum_sac"], "give one preset or file, not 'cart"),
        (["nothing.yaml"], "there is no config file 'nothing.yaml'"),
        (["nothing.py"], "there is no config file 'nothing.py'"),
        (["env.id=CartPol-v1"], "there is no environment 'CartPol-v1'; did you mean 'CartPole-v1'"),
        (["--resume", "nothing"], "nothing is not a run directory: it has no config.yaml"),
        (["cartpole_ppo", "--resume", "run"], "a run is resumed with its own config: leave"),
        (["cartpole_ppo", "--display", "loud"], "Invalid value for '--display'"),
        (["cartpole_ppo", "--dispaly", "live"], "No such option: --dispaly"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = guerdon("train", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {sentence}")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    result = guerdon("train", "env.id=MiniGrid-Empty-5x5-v0", f"run.dir={tmp_path / 'run'}")
    assert result.exit_code == 2
    assert install_command("minigrid") in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    folder = tmp_path / "run"
    train(folder)
    before = (folder / "metrics.jsonl").read_bytes()
    result = guerdon("train", "cartpole_ppo", f"run.dir={folder}")
    assert result.exit_code == 2
    assert result.stderr == (
        f"Error: {folder} already holds a run: resume it with `--resume {folder}`, "
        f"or name another folder\n"
    )
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_wrong_option_says_where_help_is():
    stderr = guerdon("list", "cats").stderr
    assert stderr.endswith("list --help`)\n")
    assert "'policies', 'rewards', 'envs', 'presets'" in stderr


@pytest.mark.parametrize(("debug", "shown"), [(None, False), ("0", False), ("1", True)])
def test_the_traceback_is_shown_where_it_is_asked_for(debug, shown, monkeypatch):
    monkeypatch.delenv("GUERDON_DEBUG", raising=False)
    if debug is not None:
        monkeypatch.setenv("GUERDON_DEBUG", debug)
    with start("eval", "nothing") as process:
        _, errors = process.communicate()
    assert process.returncode == (1 if shown else 2)
    assert ("Traceback" in errors) == shown
    assert "nothing is not a run directory" in errors


def test_unexpected_errors_keep_their_traceback(tmp_path):
    file = tmp_path / "bad.yaml"
    (tmp_path / "broken_env.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Env):\n"
        "    def __init__(self):\n"
        "        raise ValueError('a bug of mine')\n"
    )
    file.write_text("env: {id: 'broken_env:Broken'}\npolicy: ppo\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        result = guerdon("train", file, f"run.dir={tmp_path / 'run'}")
    assert result.exit_code == 1
    assert isinstance(result.exception, ValueError)
    assert "Error: " not in result.stderr


# --- what is expected

WHERE = "GUERDON_DEBUG=1 shows where"


def raised(source, module):
    """The error of some code, as if it stood in a module."""
    try:
        exec(source, {"__name__": module, "np": np})
    except Exception as error:
        return error
    raise AssertionError("there was no error")


@pytest.mark.parametrize("kind", ["ValueError", "RuntimeError"])
def test_what_guerdon_raises_on_purpose_is_a_sentence(kind):
    source = f"def check():\n    raise {kind}('x is 3,\\n  but has to be 2')\ncheck()"
    assert sentence_of(raised(source, "guerdon.some.file")) == "x is 3, but has to be 2"
    assert sentence_of(raised(source, "other.file")) is None
    assert sentence_of(raised(source, "guerdonian")) is None


@pytest.mark.parametrize(
    "source",
    [
        "first, second = [1]",
        "int('x')",
        "np.zeros(3).reshape(2, 2)",
        "raise NotImplementedError('later')",
        "raise KeyError('x')",
        "raise TypeError('x')",
        "raise ValueError",
        "{}['x']",
    ],
)
def test_a_bug_in_guerdon_is_no_sentence(source):
    assert sentence_of(raised(source, "guerdon.some.file")) is None


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ConfigError("unknown key 'x'"), "unknown key 'x'"),
        (MissingExtraError("install it"), "install it"),
        (FileNotFoundError("there is none"), "there is none"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), "a.txt: No such file"),
        (PermissionError(errno.EACCES, "Permission denied", "b"), "b: Permission denied"),
        (ValueError("raised nowhere"), None),
        (OSError(errno.ENOSPC, "No space left on device", "c"), "c: No space left on device"),
        (OSError(errno.ENAMETOOLONG, "File name too long", b"d"), "b'd': File name too long"),
        (OSError(errno.EIO, "Input/output error"), f"Input/output error ({WHERE})"),
        (OSError("the file is odd"), "the file is odd"),
        (TimeoutError(), "TimeoutError"),
        (shutil.Error([("a", "b", "full")]), "[('a', 'b', 'full')]"),
    ],
)
def test_some_classes_are_expected_wherever_they_come_from(error, sentence):
    assert sentence_of(error) == sentence


def test_warnings_are_sentences(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        with plain_warnings():
            warnings.warn("the disk is\nnearly full", stacklevel=1)
        assert warnings.showwarning is before
    assert capsys.readouterr().err == "Warning: the disk is nearly full\n"
