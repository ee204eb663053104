"""Runs the examples as scripts."""

import json
import re
import runpy
from pathlib import Path

import nbformat
import numpy as np
import pytest
from gymnasium import spaces
from nbclient import NotebookClient

from guerdon.data import Batch
from guerdon.reward import REWARDS, Setting
from tests.processes import Program
from tests.reward.ranked import same_states

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT = """
import runpy, sys, warnings
warnings.simplefilter("error")
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(name, folder, *arguments):
    options = "argparse" in (EXAMPLES / name).read_text()  # others take overrides
    where = f"--dir={folder}" if options else f"run.dir={folder}"
    with Program("-c", SCRIPT, EXAMPLES / name, where, *arguments) as process:
        shown, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads((folder / "summary.json").read_text()), shown


@pytest.mark.parametrize(
    ("name", "arguments", "better_than"),
    [
        ("tutorial_dqn.py", ("--steps", "400", "--nstep", "3"), 0),
        ("custom_policy.py", ("run.max_steps=6000", "seed=0"), 60),
        ("custom_reward_model.py", ("--steps", "3000", "--seed", "0"), 25),
        ("reward_score_only.py", ("run.max_steps=6000", "seed=0"), 100),
        ("reward_with_network.py", ("run.max_steps=6000", "seed=0"), 100),
    ],
)
def test_an_example_runs(name, arguments, better_than, tmp_path):
    summary, shown = run(name, tmp_path / "run", *arguments)
    assert summary["stop_reason"] == "max_steps"
    assert summary["updates"] > 10
    assert summary["eval_return_mean"] > better_than
    assert "stopped: max_steps" in shown
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [("tutorial_dqn.py", 195), ("custom_policy.py", 475)])
def test_an_example_learns_cartpole(name, target, tmp_path):
    summary, _ = run(name, tmp_path / "run")
    assert summary["stop_reason"] == "target_return"
    assert summary["best_eval_return_mean"] >= target
    assert summary["eval_return_mean"] >= 0.7 * target  # on other episodes than those it stopped at


def sb3_returns(folder, *arguments):
    """The true returns of Stable-Baselines3 before and after it was trained."""
    _, shown = run("sb3_on_learned_reward.py", folder, *arguments)
    found = re.search(r"true return (-[\d.]+) before, (-[\d.]+) after", shown)
    return [float(number) for number in found.groups()]


def test_stable_baselines3_trains_on_a_learned_reward(tmp_path):
    before, after = sb3_returns(tmp_path / "run", "--steps", "1000", "--sb3-steps", "500")
    assert before != after


@pytest.mark.slow
def test_stable_baselines3_learns_from_a_learned_reward_alone(tmp_path):
    before, after = sb3_returns(tmp_path / "run")
    assert before < -8
    assert after > -4


@pytest.mark.parametrize(
    ("name", "lines"),
    [("custom_policy.py", 80), ("reward_score_only.py", 30), ("reward_with_network.py", 60)],
)
def test_an_example_is_short(name, lines):
    assert sum(map(bool, (EXAMPLES / name).read_text().splitlines())) <= lines


def test_a_reward_model_with_a_network_resumes_exactly():
    kind = runpy.run_path(str(EXAMPLES / "reward_with_network.py"))["Survival"]
    del REWARDS._classes["survival"]
    setting = Setting(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), seed=3)
    models = [kind({}, setting), kind({}, setting)]
    obs = np.random.default_rng(0).normal(size=(20, 2, 4)).astype(np.float32)
    rollout = Batch(obs_next=obs, terminated=obs[..., 0] > 1, mask=np.ones((20, 2), bool))
    for _ in range(2):
        models[0].collect_data(rollout)
        models[0].train()
    models[1].load_training_state(models[0].training_state())
    for model in models:
        model.collect_data(rollout)
    assert models[0].train() == models[1].train()
    assert same_states(models[0].training_state(), models[1].training_state())


# --- the notebook


def execute(notebook, folder, monkeypatch):
    """Runs all cells in a kernel of its own; an error in one of them is raised."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()


def shown(notebook):
    """What the cells show beside lines of text: the formats of each."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not any("error" in (each.output_type, each.get("name")) for each in outputs)
    return [{*output.data} for output in outputs if "data" in output]


@pytest.fixture
def quickstart():
    return nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)


def test_the_notebook_was_executed_from_top_to_bottom(quickstart):
    nbformat.validate(quickstart)
    counts = [cell.execution_count for cell in quickstart.cells if cell.cell_type == "code"]
    assert counts == [*range(1, len(counts) + 1)]
    assert shown(quickstart).count({"text/plain", "image/png"}) == 2
    assert (EXAMPLES / "quickstart.ipynb").stat().st_size < 150_000


def test_the_notebook_runs(quickstart, tmp_path, monkeypatch):
    before = shown(quickstart)
    for cell in quickstart.cells:
        cell.source = re.sub(r"\b\d+_0(00|96)\b", "1_024", cell.source)
    execute(quickstart, tmp_path, monkeypatch)
    assert shown(quickstart) == before


@pytest.mark.slow
def test_the_notebook_learns(quickstart, tmp_path, monkeypatch):
    execute(quickstart, tmp_path, monkeypatch)
    for name, better_than in (("first", 100), ("corridor", 0.9), ("gail", 100)):
        summary = json.loads((tmp_path / "runs" / name / "summary.json").read_text())
        assert summary["eval_return_mean"] > better_than
