"""The command as a whole: verbs, the documented flags, and the package in Python."""

import json

import pytest
import torch
import typer

import guerdon as package
from guerdon.cli import app
from tests.cli.tiny import BUDGET, guerdon, start, train

VERBS = ["train", "sweep", "eval", "list", "plot", "explain", "demo"]


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_names_all_verbs(arguments):
    result = guerdon(*arguments)
    assert result.exit_code == 0
    assert [verb for verb in VERBS if f" {verb} " in result.stdout] == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb):
    for option in ("-h", "--help"):
        result = guerdon(verb, option)
        assert result.exit_code == 0
        assert f"guerdon {verb}" in result.stdout or f"root {verb}" in result.stdout


def commands(group, *words):
    """The words of every command, with the command."""
    for name, command in group.commands.items():
        inner = hasattr(command, "commands")
        yield from commands(command, *words, name) if inner else [([*words, name], command)]


@pytest.mark.parametrize(("words", "command"), [*commands(typer.main.get_command(app))])
def test_help_is_plain_and_ends_with_examples(words, command):
    first = command.get_short_help_str(60)
    assert first.endswith(".")
    assert not first.endswith("...")  # it is short enough for the list of commands
    assert not first.split()[0].endswith("s")  # imperative
    assert all(param.help for param in command.params if param.name != "help")
    shown = guerdon(*words, "--help").output
    assert "range>" not in shown
    assert f"Examples:\n    guerdon {' '.join(words)} " in shown


@pytest.mark.parametrize(
    ("words", "found"),
    [("tr", ["train"]), ("train cartpole_pp", ["cartpole_ppo", "cartpole_ppo_gail"])],
)
def test_shells_complete_commands_and_presets(words, found, monkeypatch):
    monkeypatch.setenv("COMP_WORDS", f"guerdon {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    monkeypatch.setenv("_GUERDON_COMPLETE", "complete_bash")
    with start() as process:
        output, errors = process.communicate()
    assert (output.split(), errors) == (found, "")


@pytest.mark.parametrize("option", ["-v", "--version"])
def test_the_version_is_shown(option):
    assert guerdon(option).stdout == f"guerdon {package.__version__}\n"


def test_the_module_is_the_command():
    with start("explain", "cartpole_ppo") as process:
        output, _ = process.communicate()
    assert process.returncode == 0
    assert output == f"env{chr(215)}1 → GAE\n"


def test_an_unknown_verb_gets_the_nearest():
    result = guerdon("trian")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: No such command 'trian'. Did you mean 'train'?")


# --- guerdon -m serial|eval -c FILE -s SEED


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, where -m serial writes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def config(here):
    file = here / "config.py"
    sections = {}
    for override in BUDGET:
        key, _, value = override.partition("=")
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = int(value)
    sections["env"]["id"] = "CartPole-v1"
    sections["run"]["dir"] = str(here / "run")
    file.write_text(f"main_config = dict({sections!r}, policy='ppo')\n")
    return file


@pytest.mark.parametrize("flags", [("-m", "-c", "-s"), ("--mode", "--config", "--seed")])
def test_the_documented_flags_train_and_evaluate(flags, config, tmp_path):
    mode, file, seed = flags
    result = guerdon(mode, "serial", file, config, seed, 4)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["seed"] == 4
    result = guerdon(mode, "eval", file, config, seed, 5)
    assert result.exit_code == 0, result.output
    assert result.stdout == guerdon("eval", tmp_path / "run", "--seed", 5).stdout


@pytest.mark.usefixtures("here")
@pytest.mark.filterwarnings("default:keys without a meaning")
def test_the_layout_of_the_tutorial_is_trained_and_evaluated(tmp_path):
    layout = {
        "env": {"env_type": "cartpole", "actor_env_num": 2, "evaluator_env_num": 1},
        "policy": {
            "policy_type": "dqn",
            "on_policy": False,
            "model": {"obs_dim": 4, "action_dim": 2, "hidden_dim_list": [8]},
            "learn": {"train_step": 1, "batch_size": 8, "algo": {"discount_factor": 0.9}},
            "collect": {"unroll_len": 1},
        },
        "replay_buffer": {"meta_maxlen": 2_000},
        "actor": {"n_sample": 8},
        "evaluator": {"n_episode": 1},
        "run": {"dir": str(tmp_path / "run"), "max_steps": 32},
    }
    file = tmp_path / "layout.py"
    file.write_text(f"main_config = {layout!r}\n")
    result = guerdon("-m", "serial", "-c", file, "-s", 4)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(
        "Warning: keys without a meaning in guerdon are ignored: policy.model.obs_dim, "
    )
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (found["seed"], found["updates"]) == (4, 3)  # not before there is a batch
    shown = guerdon("-m", "eval", "-c", file).stdout
    assert shown.startswith(f"CartPole-v1 · dqn · step {found['env_steps']:,} ·")


def test_a_serial_run_leaves_the_documents_files(config, here):
    result = guerdon("-m", "serial", "-c", config, "-p", "local")
    assert result.exit_code == 0, result.output
    [checkpoints] = here.glob("ckptBaseLearner*")
    weights = torch.load(next(checkpoints.glob("iteration_*.pth.tar")), weights_only=True)
    assert weights["model"].keys() == package.load_policy(here / "run").state_dict().keys()
    logs = {str(path.relative_to(here / "log")) for path in here.glob("log/**/*.txt")}
    assert logs == {
        "actor/collect_logger.txt",
        "buffer/armor_buffer/armor_logger.txt",
        "evaluator/evaluator_logger.txt",
        "learner/learner_logger.txt",
    }
    assert "eval/mean_reward=" in (here / "log/evaluator/evaluator_logger.txt").read_text()
    boards = {path.parent.name for path in here.glob("log/**/events.out.tfevents.*")}
    assert boards == {"armor_tb_logger", "evaluator_tb_logger", "learner_tb_logger"}


def test_a_config_alone_is_trained(config, tmp_path):
    assert guerdon("-c", config).exit_code == 0
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_run_or_its_config_can_be_evaluated(tmp_path):
    folder = tmp_path / "run"
    train(folder)
    expected = guerdon("eval", folder).stdout
    assert expected.startswith("CartPole-v1 · ppo")
    assert guerdon("-m", "eval", "-c", folder).stdout == expected
    assert guerdon("-m", "eval", "-c", folder / "config.yaml").stdout == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-m", "parallel"], "-m parallel needs a config: add -c FILE"),
        (["-lh", "one", "-ah", "two"], "-m parallel needs a config: add -c FILE"),
        (["-c", "no.py", "-ch", "one"], "-ch, -lh and -ah are for -p slurm: leave them out"),
        (
            ["-m", "serial", "-p", "slurm"],
            "-p, -ch, -lh and -ah are for -m parallel, not -m serial",
        ),
        (["-m", "parallel", "-p", "k8s", "-c", "no.py"], "there is no config file 'no.py'"),
        (["-p", "mars"], "Invalid value for '--platform' / '-p': "),
        (["-m", "serial"], "-m serial needs a config: add -c FILE"),
        (["-m", "serial", "-c", "no.py"], "there is no config file 'no.py'"),
        (["-s", "3", "train", "cartpole_ppo"], "-m, -c and -s take no command: leave them out"),
        (["-m", "eval", "-c", "cartpole_ppo"], "cartpole_ppo does not belong to a run: give"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = guerdon(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {sentence}")


# --- in Python


def test_python_is_the_same(tmp_path):
    result = package.train(
        "cartpole_ppo", *BUDGET, f"run.dir={tmp_path / 'run'}", seed=2, display="none"
    )
    assert result["seed"] == 2
    played = package.evaluate_run(result.run_dir, episodes=3)
    assert len(played["returns"]) == 3
    assert type(package.load_policy(result.run_dir)).__name__ == "PPO"


def test_the_package_shows_what_is_public_and_nothing_else():
    assert dir(package) == sorted(["__version__", *package.__all__])
    assert all(callable(getattr(package, name)) for name in package.__all__)
    with pytest.raises(AttributeError, match="module 'guerdon' has no attribute 'trian'"):
        package.trian  # noqa: B018
