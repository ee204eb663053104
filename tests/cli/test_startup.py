"""What the command line costs before it does anything."""

import subprocess
import sys
import time

import pytest

import guerdon

ANSWERS = {"--version": f"guerdon {guerdon.__version__}", "--help": "Usage"}
VERBS = ("train", "eval", "collect", "reward", "list", "plot", "explain", "demo")
HEAVY = {"torch", "numpy", "numba", "gymnasium", "ray", "hydra", "pydantic", "tensorboard"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)


@pytest.mark.slow  # depends on the clock; what takes long to import is checked below
@pytest.mark.parametrize("option", ANSWERS)
def test_it_answers_in_under_half_a_second(option):
    seconds = []
    while len(seconds) < 10 and min(seconds, default=1.0) >= 0.5:
        # By the clock, as a user waits. The best counts: other tests may keep the machine busy.
        start = time.perf_counter()
        answer = run("-m", "guerdon", option)
        seconds.append(time.perf_counter() - start)
        assert ANSWERS[option] in answer.stdout
    assert min(seconds) < 0.5


@pytest.mark.parametrize("option", ANSWERS)
def test_it_imports_nothing_heavy(option):
    assert not imported_by(option) & HEAVY


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_imports_nothing_heavy(verb):
    # But for pydantic, which typer itself uses.
    assert not imported_by(verb, "--help") & (HEAVY - {"pydantic"})


def imported_by(*arguments: str) -> set[str]:
    answer = run("-X", "importtime", "-m", "guerdon", *arguments)
    lines = [line for line in answer.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "guerdon" in imported
    return imported


def test_the_package_itself_imports_nothing_heavy():
    answer = run("-c", "import sys, guerdon, guerdon.extras; print(*sys.modules, sep='\\n')")
    assert not {line.partition(".")[0] for line in answer.stdout.splitlines()} & HEAVY
