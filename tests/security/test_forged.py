"""Files that fit their format and their checksums, but say what guerdon has never written."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from guerdon.data import Batch, Preference, load_preferences, save_preferences
from guerdon.data.journal import Journal
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint
from tests.cli.tiny import BUDGET, guerdon, train


def refused(*arguments):
    """The sentence with which a command ends."""
    result = guerdon(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


# --- checkpoints


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    return folder


@pytest.fixture
def forged(run, tmp_path):
    """A function that changes the state of all checkpoints of a copy of the run."""

    def forge(change, name="checkpoints"):
        shutil.copytree(run, tmp_path / "run")
        folder = tmp_path / "run" / name
        states = [load_checkpoint(folder, step)[0] for step in checkpoint_steps(folder)]
        for step, state in zip(checkpoint_steps(folder), states, strict=True):
            change(state)
            save_checkpoint(folder, step, state, keep=9, mark="scheduled")
        return tmp_path / "run"

    return forge


def resume(folder, *more):
    return ("train", "--resume", folder, "run.max_steps=512", "--display", "none", *more)


def named(part, **values):
    return lambda state: state[part].update(values)


STATES = {
    "config: a number": lambda state: state.update(config=3),
    "config: no version": lambda state: state["config"].pop("version"),
    "config: another network": lambda state: state["config"]["policy"].update(model={"hidden": 9}),
    "journal: text": lambda state: state.update(journal="../thesis"),
    "journal: negative": lambda state: state.update(journal=-1),
    "policy: gone": lambda state: state.pop("policy"),
    "policy: a number": lambda state: state.update(policy=3),
    "policy: another shape": lambda state: state["policy"].update(
        module={name: np.zeros(3) for name in state["policy"]["module"]}
    ),
    "monitor: gone": lambda state: state.pop("monitor"),
    "monitor: text": lambda state: state.update(monitor="x"),
    "monitor: steps": named("monitor", progress={"env_steps": 1, "seconds": "x"}),
    "monitor: confirmed": named("monitor", confirmed_at="x"),
    "monitor: saved": named("monitor", saved_at={}),
    "monitor: returns": named("monitor", returns=["x"]),
    "monitor: logged": named("monitor", logged=[]),
    "monitor: newest": named("monitor", newest={"train/loss": "x"}),
    "evaluator: a list": lambda state: state.update(evaluator=[1]),
    "evaluator: returns": lambda state: state["evaluator"]["newest"].update(returns="x"),
    "evaluator: a path": lambda state: state["evaluator"]["best"].update(step="../../x"),
    "evaluator: no weights": lambda state: state["evaluator"]["best"].pop("weights"),
    "evaluator: other weights": lambda state: state["evaluator"]["best"].update(
        weights={name: np.zeros(3) for name in state["policy"]["module"]}
    ),
}


@pytest.mark.parametrize("change", STATES)
@pytest.mark.parametrize("exact", [False, True])
def test_a_forged_state_is_refused(change, exact, forged):
    folder = forged(STATES[change])
    before = sorted(path.name for path in (folder / "checkpoints").iterdir())
    said = refused(*resume(folder, *["--exact"] * exact))
    assert "cannot change on resume" in said if "another network" in change else str(folder) in said
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == before


WEIGHTS = {
    "text": lambda state: state.update(weights="x"),
    "other values": lambda state: state.update(weights=dict.fromkeys(state["weights"], "x")),
    "other names": lambda state: state.update(weights={"x": np.zeros(3)}),
    "gone": lambda state: state.pop("weights"),
}


@pytest.mark.parametrize("change", WEIGHTS)
def test_forged_weights_are_refused(change, forged):
    folder = forged(WEIGHTS[change], "best")
    assert str(folder) in refused("eval", folder, "--episodes", "1")
    assert str(folder) in refused("train", "cartpole_ppo", *BUDGET, f"policy.init_from={folder}")


# --- sweeps


SWEEP = ("sweep", "cartpole_ppo", *BUDGET, "policy.gamma=0.9,0.99", "seed=0", "--trials", "1")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    pytest.importorskip("optuna")
    folder = tmp_path_factory.mktemp("sweeps") / "sweep"
    result = guerdon(*SWEEP, "--sweep-dir", folder)
    assert result.exit_code == 0, result.output
    return folder


def distribution(*choices):
    """How Optuna writes a distribution."""
    attributes = {"choices": choices}
    return json.dumps({"name": "CategoricalDistribution", "attributes": attributes})


CODE = "0.9 env.id=subprocess:Popen"
DRAWN, ENDED = 2, 3  # lines: the study, a trial, its value, its score
LINES = {
    "other values": (DRAWN, {"distribution": distribution(CODE, "0.99")}),
    "another option": (DRAWN, {"param_name": "env.id"}),
    "no such value": (DRAWN, {"param_value_internal": 7}),
    "no such trial": (DRAWN, {"trial_id": 9}),
    "no such operation": (DRAWN, {"op_code": 99}),
    "a score of text": (ENDED, {"values": ["x"]}),
    "no score": (ENDED, {"values": None}),
    "no such state": (ENDED, {"state": 99}),
    "no time": (ENDED, {"datetime_complete": 3}),
    "the lowest is the best": (0, {"directions": [1]}),
    "two scores": (0, {"directions": []}),
}


@pytest.mark.parametrize("name", [*LINES, "no JSON", "nested"])
def test_a_forged_log_of_a_sweep_is_refused(name, sweep, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(sweep, folder)
    lines = [json.loads(line) for line in (sweep / "optuna.log").read_text().splitlines()]
    number, changed = LINES.get(name, (0, {}))
    lines[number].update(changed)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    text = {"no JSON": "{\n" + text, "nested": "[" * 100_000 + "\n"}.get(name, text)
    (folder / "optuna.log").write_text(text)
    said = refused(*SWEEP, "--sweep-dir", folder)
    assert said.startswith(f"Error: {folder / 'optuna.log'} is damaged: ")


def test_a_trial_whose_values_were_not_all_drawn_is_left_out(sweep, tmp_path):
    """As a kill leaves it."""
    folder = tmp_path / "sweep"
    shutil.copytree(sweep, folder)
    lines = (sweep / "optuna.log").read_text().splitlines(keepends=True)
    (folder / "optuna.log").write_text("".join([*lines, lines[1]]))
    result = guerdon(*SWEEP, "--sweep-dir", folder)
    assert result.exit_code == 0, result.output
    assert "best trial: 0" in result.output


# --- journals


def preference(pair):
    segment = Batch(obs=np.zeros((3, 2)))
    return Preference(pair, segment, segment, label=1.0, rater="me")


def rewind(entries, folder):
    (folder / "run").mkdir()
    (folder / "run" / "outputs.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in entries))
    journal = Journal()
    journal.open(folder / "run" / "outputs.jsonl", 0)
    journal.close()


@pytest.mark.parametrize("stem", ["mine", "mine.v1", "mine[1]", "*", "?"])
@pytest.mark.parametrize("ending", [".jsonl", ".json", ""])
@pytest.mark.parametrize("forged", ["", ".jsonl", ".x", ".x.y"])
def test_a_journal_cannot_name_the_segments_of_another_file(stem, ending, forged, tmp_path):
    """Files of one stem share a folder of segments, which are removed if a file has no line."""
    mine, other = tmp_path / f"{stem}{ending}", tmp_path / f"{stem}{forged}"
    save_preferences(mine, [preference("000000")])
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    rewind([{"path": str(other), "sha256": "0" * 64, "pair": "000000"}], tmp_path)
    assert before <= {*tmp_path.rglob("*")}
    assert [each.pair for each in load_preferences(mine)] == ["000000"]


def test_a_journal_cannot_name_segments_through_a_link(tmp_path):
    save_preferences(tmp_path / "mine.jsonl", [preference("000000")])
    (tmp_path / "other_segments").symlink_to("mine_segments")
    other = {"path": str(tmp_path / "other.jsonl"), "sha256": "0" * 64, "pair": "000000"}
    rewind([other], tmp_path)
    assert len(load_preferences(tmp_path / "mine.jsonl")) == 1


@pytest.mark.parametrize("name", ["000000.npz", "000000.txt", "thesis.npz"])
def test_a_journal_removes_only_trajectories_with_the_content_that_it_lists(name, tmp_path):
    file = tmp_path / name
    file.write_text("my thesis")
    digest = "0" * 64 if name == "000000.npz" else hashlib.sha256(b"my thesis").hexdigest()
    rewind([{"path": str(file), "sha256": digest}], tmp_path)
    assert file.read_text() == "my thesis"


def test_a_journal_removes_no_links(tmp_path):
    file = tmp_path / "000000.npz"
    (tmp_path / "000001.npz").write_text("my thesis")
    file.symlink_to("000001.npz")
    digest = hashlib.sha256(b"my thesis").hexdigest()
    rewind([{"path": str(file), "sha256": digest}], tmp_path)
    assert file.is_symlink()
