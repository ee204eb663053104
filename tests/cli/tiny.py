"""Runs of the command on budgets of a second, in this process or in one of its own."""

from pathlib import Path

from typer.testing import CliRunner

from guerdon.cli import app
from tests.processes import Program

BUDGET = (
    "env.n_envs=2",
    "collect.n_step=64",
    "learn.batch_size=32",
    "run.max_steps=256",
    "run.log_every=64",
    "run.checkpoint_every=128",
    "eval.every=128",
    "eval.episodes=2",
)


def guerdon(*arguments):
    """Runs the command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def train(folder, *arguments, source="cartpole_ppo"):
    """A tiny run in a folder."""
    result = guerdon("train", source, *BUDGET, f"run.dir={folder}", *arguments)
    assert result.exit_code == 0, result.output
    return result


def start(*arguments, **options):
    """Starts the command as a process; see `Program` for the options."""
    return Program("-m", "guerdon", *arguments, **options)


def damage(folder: Path, step: int) -> None:
    """Cuts the weights of a checkpoint short."""
    file = folder / "checkpoints" / f"step_{step}" / "policy.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
