"""What the command line costs before it does anything."""

import subprocess
import sys

import pytest

import guerdon

ANSWERS = {"--version": f"guerdon {guerdon.__version__}", "--help": "Usage"}
VERBS = (
    "train", "sweep", "eval", "collect", "reward", "list", "plot", "report", "export", "explain",
    "demo",
)  # fmt: skip
HEAVY = {"torch", "numpy", "numba", "gymnasium", "ray", "hydra", "pydantic", "tensorboard"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)


@pytest.mark.slow  # depends on the clock; what takes long to import is checked below
@pytest.mark.parametrize("option", ANSWERS)
def test_it_answers_and_imports_nothing_heavy(option):
    answer, imported = imported_by(option)
    assert ANSWERS[option] in answer
    assert not imported & HEAVY
    own = {name for name in imported if name.startswith("guerdon.")}
    assert {name.split(".")[1] for name in own} <= {"__main__", "cli"}


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_imports_nothing_heavy(verb):
    _, imported = imported_by(verb, "--help")
    assert not imported & (HEAVY - {"pydantic"})  # which typer itself uses


def imported_by(*arguments: str) -> tuple[str, set[str]]:
    """What the command prints, and the packages and modules of guerdon that it imports."""
    answer = run("-X", "importtime", "-m", "guerdon", *arguments)
    lines = [line for line in answer.stderr.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip() for line in lines}
    assert "guerdon" in names
    return answer.stdout, names | {name.partition(".")[0] for name in names}


def test_the_package_itself_imports_nothing_heavy():
    answer = run("-c", "import sys, guerdon, guerdon.extras; print(*sys.modules, sep='\\n')")
    assert not {line.partition(".")[0] for line in answer.stdout.splitlines()} & HEAVY
