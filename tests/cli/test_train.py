"""``guerdon train``: real runs, of a second each."""

import json
import os
import pty
import select
import signal
import sys
import time
import warnings

import pytest
from omegaconf import OmegaConf

from guerdon.cli.common import split
from guerdon.extras import install_command
from guerdon.training.checkpoints import checkpoint_steps
from tests.cli.tiny import BUDGET, damage, guerdon, start, train

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def steps_logged(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


# --- what can be named


@pytest.mark.parametrize(
    ("arguments", "env", "policy"),
    [
        (["cartpole_ppo"], "CartPole-v1", "ppo"),
        (["env=pendulum", "policy=sac", "collect.warmup_steps=64"], "Pendulum-v1", "sac"),
        (["env.id=Acrobot-v1", "policy=ppo"], "Acrobot-v1", "ppo"),
    ],
)
def test_a_preset_groups_or_any_registered_environment_is_trained(arguments, env, policy, tmp_path):
    folder = tmp_path / "run"
    result = guerdon("train", *arguments, *BUDGET, f"run.dir={folder}", "seed=3")
    assert result.exit_code == 0, result.output
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.env.id, config.policy.type) == (env, policy)
    found = summary(folder)
    assert found["env_steps"] >= 256
    assert found["seed"] == 3
    assert found["stop_reason"] == "max_steps"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.yaml", "env: pendulum\npolicy: ppo\nseed: 7\n"),
        ("mine.py", "main_config = dict(env='pendulum', policy='ppo', seed=7)\n"),
    ],
)
def test_a_file_is_trained(name, text, tmp_path):
    file, folder = tmp_path / name, tmp_path / "run"
    file.write_text(text)
    train(folder, source=file)
    assert OmegaConf.load(folder / "config.yaml").env.id == "Pendulum-v1"
    assert summary(folder)["seed"] == 7


MINE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from guerdon.nn import ActorCritic, register_model
from guerdon.policy import PPO, register_policy

@register_policy("mine")
class Mine(PPO):
    "A policy of my own."

@register_model("my_network")
class Network(ActorCritic):
    "A network of my own."

def double(batch):
    return 2 * batch.rew

class Pole(CartPoleEnv):
    pass

gymnasium.register("Mine/Pole-v0", Pole, max_episode_steps=50)
main_config = dict(
    env=dict(id="Mine/Pole-v0"),
    policy=dict(type="mine", model=dict(type="my_network")),
    reward=dict(type="function", target=double),
)
"""


def test_a_run_of_a_python_file_is_evaluated_and_resumed_without_naming_the_file(tmp_path):
    file, folder = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(MINE)
    for arguments, said in (
        (["train", file, *BUDGET, f"run.dir={folder}"], "stopped: max_steps"),
        (["eval", folder, "--episodes", 1], "Mine/Pole-v0 · mine · step"),
        (["train", "--resume", folder, "run.max_steps=320"], "resumed at step"),
    ):
        with start(*arguments, cwd="/") as process:  # in new processes, which know nothing yet
            output, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
        assert said in output
    file.unlink()
    result = guerdon("eval", folder)
    assert result.exit_code == 2
    assert result.stderr == (
        f"Error: 'imports' names the file '{file}', which is not there: put it back, or write "
        f"where it is now (of a run, in its config.yaml)\n"
    )


def test_a_file_that_moved_can_be_named_on_resume(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from guerdon.policy import PPO, register_policy\n"
        "@register_policy('moved')\nclass Moved(PPO): ...\n"
        "main_config = dict(env='cartpole', policy='moved')\n"
    )
    train(tmp_path / "run", source=tmp_path / "mine.py")
    (tmp_path / "new").mkdir()
    (tmp_path / "mine.py").rename(tmp_path / "new" / "mine.py")
    monkeypatch.chdir(tmp_path)
    result = guerdon("train", "--resume", "run", "imports=[new/mine.py]", "run.max_steps=320")
    assert result.exit_code == 0, result.output
    assert OmegaConf.load("run/config.yaml").imports == [str(tmp_path / "new" / "mine.py")]
    assert guerdon("eval", "run", "--episodes", 1).exit_code == 0


def test_the_last_lines_say_how_it_went_where_it_is_and_what_is_next(tmp_path):
    folder = tmp_path / "my run"  # which has to be quoted in a command
    last = "\n".join(train(folder).stdout.splitlines()[-2:])
    found = summary(folder)
    mean, std = found["eval_return_mean"], found["eval_return_std"]
    assert last == (
        f"return {mean:.2f} ± {std:.2f} after {found['env_steps']:,} steps, in '{folder}'\n"
        f"next: guerdon eval '{folder}', guerdon plot '{folder}', guerdon report '{folder}'"
    )


def test_without_a_display_only_the_last_lines_are_left(tmp_path):
    result = train(tmp_path / "run", "--display", "none")
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == ""


def test_in_a_pipe_there_is_a_line_for_each_log(tmp_path):
    lines = train(tmp_path / "run").stdout.splitlines()
    logged = [line for line in lines if line.startswith("steps ")]
    assert [f"steps {step:,}" for step in steps_logged(tmp_path / "run")] == [
        line.partition("  ")[0] for line in logged
    ]


def test_the_folder_has_a_name_of_its_own_where_none_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = guerdon("train", "cartpole_ppo", *BUDGET, "seed=5")
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / "runs" / "cartpole_ppo").iterdir()
    assert folder.name.endswith("-5")
    assert f"guerdon eval {folder.relative_to(tmp_path)}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], (None, [])),
        (["cartpole_ppo", "seed=3"], ("cartpole_ppo", ["seed=3"])),
        (["seed=3", "cartpole_ppo"], ("cartpole_ppo", ["seed=3"])),
        (["~env.kwargs", "+policy.gamma=1"], (None, ["~env.kwargs", "+policy.gamma=1"])),
        (["runs/a=b/config.yaml", "seed=3"], ("runs/a=b/config.yaml", ["seed=3"])),
    ],
)
def test_the_source_is_what_is_no_override(arguments, found):
    assert split(arguments) == found


# --- going on


def test_a_run_is_resumed_with_a_larger_budget(tmp_path):
    folder = tmp_path / "run"
    train(folder)
    before = summary(folder)["env_steps"]
    result = guerdon("train", "--resume", folder, "run.max_steps=512")
    assert result.exit_code == 0, result.output
    assert f"resumed at step {before}" in result.stdout
    assert 512 <= summary(folder)["env_steps"] < 640
    logged = steps_logged(folder)
    assert logged == sorted(logged)
    assert logged[0] < before < logged[-1]


def test_ctrl_c_saves_and_the_run_can_be_resumed(tmp_path):
    folder = tmp_path / "run"
    budget = [*BUDGET, "run.max_steps=100_000_000", "eval.every=100_000_000"]
    with start("train", "cartpole_ppo", *budget, f"run.dir={folder}") as process:
        for line in process.stdout:
            if line.startswith("steps "):
                break
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert process.returncode == 130, output + errors
    assert errors == "stopping after this iteration; press Ctrl-C again to stop at once\n"
    found = summary(folder)
    assert found["stop_reason"] == "interrupted"
    assert checkpoint_steps(folder / "checkpoints")[-1] == found["env_steps"]
    assert output.splitlines()[-1] == (
        f"interrupted after {found['env_steps']:,} steps, which are saved in {folder}; "
        f"resume with: guerdon train --resume {folder}"
    )
    result = guerdon("train", "--resume", folder, f"run.max_steps={found['env_steps'] + 100}")
    assert result.exit_code == 0, result.output
    assert f"resumed at step {found['env_steps']}" in result.stdout
    assert summary(folder)["env_steps"] >= found["env_steps"] + 100


WAITING = """
import sys, time
from gymnasium.envs.classic_control import CartPoleEnv

class Waiting(CartPoleEnv):
    def __init__(self):
        super().__init__()
        sys.stdout.write("made\\n")
        sys.stdout.flush()
        time.sleep(60)
"""


def test_ctrl_c_while_a_run_starts_ends_it_without_a_word(tmp_path):
    (tmp_path / "waiting.py").write_text(WAITING)
    arguments = ["env.id=waiting.py:Waiting", "policy=ppo", *BUDGET, "run.dir=run"]
    with start("train", *arguments, cwd=tmp_path) as process:
        assert process.stdout.readline() == "made\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert (process.returncode, output, errors) == (130, "", "")
    assert not (tmp_path / "run").exists()


SLOW = """
import time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Slow(CartPoleEnv):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)

gymnasium.register("Slow-v0", Slow, max_episode_steps=20)
main_config = dict(
    env=dict(id="Slow-v0", n_envs=1), policy="ppo", learn=dict(batch_size=20),
    collect=dict(n_step=20), run=dict(checkpoint_every=20, log_every=20), eval=dict(every=10**6),
)
"""


def test_a_second_ctrl_c_ends_at_once_and_leaves_the_last_checkpoint(tmp_path):
    file, folder = tmp_path / "slow.py", tmp_path / "run"
    file.write_text(SLOW)
    with start("train", file, f"run.dir={folder}") as process:
        for line in process.stdout:
            if line.startswith("steps 40"):  # and then the checkpoint of step 20 is there
                break
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith("stopping after this iteration")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == ""
    assert not (folder / "summary.json").exists()
    # Not the newest folder: it may have ended before the one that it was writing counted.
    named = (folder / "checkpoints" / "latest").read_text().splitlines()[0]
    last = int(named.removeprefix("step_"))
    result = guerdon("train", "--resume", folder, f"run.max_steps={last + 20}", "eval.episodes=1")
    assert result.exit_code == 0, result.output
    assert f"resumed at step {last}" in result.stdout


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path):
    folder = tmp_path / "run"
    train(folder)
    *_, before, last = checkpoint_steps(folder / "checkpoints")
    damage(folder, last)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = guerdon("train", "--resume", folder)
    assert result.exit_code == 0, result.output
    (warning,) = result.stderr.splitlines()
    assert warning.startswith(f"Warning: {folder}/checkpoints/step_{last}/policy.safetensors")
    assert warning.endswith("the checkpoint before it is used")
    assert f"resumed at step {before}" in result.stdout


# --- on a terminal


def test_on_a_terminal_there_is_a_live_panel_and_the_cursor_comes_back(tmp_path):
    ours, theirs = pty.openpty()
    folder = tmp_path / "run"
    process = start("train", "cartpole_ppo", *BUDGET, f"run.dir={folder}", terminal=theirs)
    os.close(theirs)
    shown = read_until_closed(ours)
    assert process.wait() == 0, shown
    assert "cartpole_ppo · CartPole-v1 · ppo · seed 0" in shown
    assert f"steps {summary(folder)['env_steps']} / 256" in shown
    assert HIDE in shown
    assert shown.rindex(SHOW) > shown.rindex(HIDE)
    assert "next: guerdon eval" in shown[shown.rindex(SHOW) :]


@pytest.mark.parametrize("display", ["live", "lines"])
def test_a_run_whose_terminal_is_closed_saves_and_stops(display, tmp_path):
    ours, theirs = pty.openpty()
    folder = tmp_path / "run"
    endless = [f"run.{name}=100_000_000" for name in ("max_steps", "checkpoint_every")]
    arguments = [*BUDGET, *endless, "eval.every=100_000_000", f"run.dir={folder}"]
    process = start("train", "cartpole_ppo", *arguments, "--display", display, terminal=theirs)
    os.close(theirs)
    while not (folder / "metrics.jsonl").exists() or not steps_logged(folder):
        if select.select([ours], [], [], 0.01)[0]:
            os.read(ours, 65536)
    os.close(ours)  # which sends SIGHUP, and writing fails from now on
    process.wait()
    found = summary(folder)
    assert found["stop_reason"] == "interrupted"
    assert checkpoint_steps(folder / "checkpoints") == [found["env_steps"]]


def read_until_closed(terminal, seconds=60):
    parts, end = [], time.monotonic() + seconds
    while time.monotonic() < end and select.select([terminal], [], [], seconds)[0]:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


# --- Weights & Biases


def test_metrics_go_to_weights_and_biases_too(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb"))
    folder = tmp_path / "run"
    arguments = [*BUDGET, "run.wandb=true", f"run.dir={folder}"]
    with start("train", "cartpole_ppo", *arguments) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for name in {name for line in logged for name in line} - {"time"}:
        assert name.encode() in content, name


def test_without_wandb_the_extra_is_named_before_the_run_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = guerdon("train", "cartpole_ppo", "run.wandb=true", f"run.dir={tmp_path / 'run'}")
    assert result.exit_code == 2
    assert install_command("wandb") in result.stderr
    assert not (tmp_path / "run").exists()


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path):
    arguments = ["train", "cartpole_ppo", *BUDGET, "run.max_steps=64", "--display", "none"]
    processes = [start(*arguments, cwd=tmp_path) for _ in range(4)]
    for process in processes:
        with process:
            _, errors = process.communicate()
        assert process.returncode == 0, errors
    folders = [*(tmp_path / "runs" / "cartpole_ppo").iterdir()]
    assert len(folders) == 4
    assert all((folder / "summary.json").is_file() for folder in folders)
