"""``guerdon train`` with lists and ``guerdon sweep``: real runs, of a second each."""

import json
import re
import shlex
import signal
import sys
import time

import pytest

from guerdon.cli import sweep as sweeping
from tests.cli.tiny import BUDGET, guerdon
from tests.processes import Program, write_command

ENDLESS = "run.max_steps=100_000_000"
INTERRUPTIBLE = """
import sys
from guerdon.cli import app, sweep

sweep.COMMAND = (sys.argv[1],)
app(sys.argv[2:])
"""


@pytest.fixture(autouse=True)
def command(tmp_path, monkeypatch):
    """The runs of sweeps start at once."""
    write_command(tmp_path)
    monkeypatch.setattr(sweeping, "COMMAND", (str(tmp_path / "guerdon"),))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "guerdon"


def train(folder, *arguments):
    return guerdon("train", "cartpole_ppo", *BUDGET, *arguments, "--sweep-dir", folder)


def summaries(folder):
    return {
        file.parent.name: json.loads(file.read_text())
        for file in sorted(folder.glob("*/summary.json"))
    }


def table(output, first):
    """The rows of the table whose heading begins with a word."""
    lines = output.splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith(first)]
    end = next(n for n, line in enumerate(lines) if line.startswith(("wrote", "no plot")))
    return [re.split(r"\s{2,}", line.strip()) for line in lines[start:end]]


# --- lists


def test_each_combination_is_trained_once_and_shown_over_seeds(tmp_path):
    folder = tmp_path / "sweep"
    arguments = ("seed=0,1", "policy.learning_rate=1e-3,1e-2", "policy.model.hidden=[8,8]")
    result = train(folder, *arguments, "--jobs", 2)
    assert result.exit_code == 0, result.output
    found = summaries(folder)
    assert list(found) == [
        f"policy.learning_rate={rate},seed={seed}" for rate in ("0.001", "0.01") for seed in (0, 1)
    ]
    assert [each["seed"] for each in found.values()] == [0, 1, 0, 1]
    assert all("finished" in line for line in result.output.splitlines() if ": eval" in line)
    rows = table(result.output, "policy.learning_rate")
    assert rows[0] == ["policy.learning_rate", "runs", "eval_return_mean", "std over seeds"]
    scores = [each["eval_return_mean"] for each in found.values()]
    means = {"0.001": sum(scores[:2]) / 2, "0.01": sum(scores[2:]) / 2}
    assert {row[0]: float(row[2]) for row in rows[1:]} == pytest.approx(means, rel=1e-3)
    assert [row[1] for row in rows[1:]] == ["2", "2"]
    assert float(rows[1][2]) >= float(rows[2][2])
    assert (folder / "curves.png").stat().st_size > 10_000
    again = train(folder, *arguments, "--jobs", 2)  # nothing is left to do
    assert again.exit_code == 0
    assert re.findall(r"^\w+", again.output, re.MULTILINE)[:4] == ["skipped"] * 4
    assert table(again.output, "policy.learning_rate") == rows


def test_a_failed_run_does_not_stop_the_others_and_is_counted(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = train(tmp_path / "sweep", "run.device=cuda:99,cpu")
    assert result.exit_code == 1
    assert list(summaries(tmp_path / "sweep")) == ["run.device=cpu"]
    failed = r"^failed run.device=cuda:99: Error: .* \(see .*output.txt\)$"
    assert re.search(failed, result.output, re.MULTILINE)
    rows = table(result.output, "run.device")
    assert [row[:2] for row in rows[1:]] == [["cpu", "1"], ["cuda:99", "0 of 1"]]
    assert "no plot: this needs the package 'matplotlib'" in result.output
    assert "1 run failed; try again with: guerdon train cartpole_ppo" in result.output


def test_ctrl_c_lets_all_runs_save_and_the_same_command_continues(tmp_path, command):
    folder = tmp_path / "sweep"
    arguments = ["cartpole_ppo", *BUDGET, ENDLESS, "eval.every=100_000_000", "seed=0,1,2"]
    arguments += ["--sweep-dir", str(folder), "--jobs", "2"]
    with Program("-c", INTERRUPTIBLE, command, "train", *arguments) as process:
        for _ in range(600):
            outputs = [file.read_text() for file in folder.glob("*/output.txt")]
            if sum("steps " in output for output in outputs) == 2:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert process.returncode == 130, output + errors
    assert output.splitlines()[-1] == (
        f"interrupted; 0 runs in {folder} finished, 2 saved to be resumed; continue with: "
        f"{shlex.join(['guerdon', 'train', *arguments])}"
    )
    stopped = summaries(folder)
    assert [each["stop_reason"] for each in stopped.values()] == ["interrupted"] * 2
    for file in folder.glob("*/config.yaml"):  # which would go on for hours
        file.write_text(file.read_text().replace("max_steps: 100000000", "max_steps: 256"))
    (folder / "seed=2").mkdir()
    (folder / "seed=2" / "summary.json").write_text(json.dumps(stopped["seed=0"] | FINISHED))
    result = guerdon("train", *arguments)
    assert result.exit_code == 0, result.output
    assert "skipped seed=2" in result.output
    for name, before in stopped.items():
        assert summaries(folder)[name]["env_steps"] >= before["env_steps"]
        assert f"resumed at step {before['env_steps']}" in (folder / name / "log.txt").read_text()


FINISHED = {"stop_reason": "max_steps", "eval_return_mean": 9.0}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["seed=0,1", "run.dir=x"], "a sweep names the folders of its runs: use --sweep-dir, not"),
        (["seed=0,1", "--resume", "x"], "--resume and --exact are for a single run: leave them"),
        (["seed=0,1", "--exact"], "--resume and --exact are for a single run: leave them out"),
        (["seed=0"], "--sweep-dir is for several runs: give a list, as in seed=0,1,2"),
        (["policy.gamma=interval(0.9,1)"], "'policy.gamma=interval(0.9,1)' has no list of values"),
        (["policy.gama=0.9,1"], "unknown key 'policy.gama': did you mean 'gamma'?"),
        (["policy.gamma=0.9,2"], "'policy.gamma' is 2: it should be less than or equal to 1"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(arguments, sentence, tmp_path):
    result = train(tmp_path / "sweep", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {sentence}")
    assert not (tmp_path / "sweep").exists()


def test_a_folder_belongs_to_one_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping.Sweep, "run", lambda *_: None)
    assert "no plot" in train(tmp_path / "sweep", "seed=0,1").output
    assert "no plot" in train(tmp_path / "sweep", "seed=0,1,2").output  # more seeds are welcome
    result = train(tmp_path / "sweep", "seed=0,1", "policy.gamma=0.9")
    assert result.exit_code == 2
    assert f"{tmp_path / 'sweep'} has a sweep with other arguments" in result.stderr


# --- Optuna


def test_optuna_searches_continues_and_names_the_best(tmp_path):
    folder = tmp_path / "sweep"
    space = ["policy.learning_rate=tag(log, interval(1e-4,1e-2))", "policy.gamma=0.9,0.99"]
    space += ["learn.repeat=range(2,7,2)", "policy.gae_lambda=interval(0.9,1)"]

    def search(trials):
        options = ["--trials", trials, "--sweep-dir", folder, "--jobs", 2]
        return guerdon("sweep", "cartpole_ppo", *BUDGET, *space, "seed=0,1", *options)

    result = search(1)
    assert result.exit_code == 0, result.output
    assert list(summaries(folder)) == ["trial=0,seed=0", "trial=0,seed=1"]
    result = search(2)
    assert result.exit_code == 0, result.output
    assert "started trial=1,seed=1" in result.output
    assert "trial=0,seed" not in result.output
    found = [each["eval_return_mean"] for each in summaries(folder).values()]
    means = [sum(found[:2]) / 2, sum(found[2:]) / 2]
    rows = table(result.output, "trial")[1:]
    assert {int(row[0]): float(row[-2]) for row in rows} == pytest.approx(
        dict(enumerate(means)), rel=1e-3
    )
    for _, rate, gamma, repeat, gae_lambda, *_ in rows:
        assert 1e-4 <= float(rate) <= 1e-2
        assert gamma in ("0.9", "0.99")
        assert repeat in ("2", "4", "6")
        assert 0.9 <= float(gae_lambda) <= 1
    best = rows[0]
    last = result.output.splitlines()[-1]
    assert last.startswith(f"best trial: {best[0]}, eval_return_mean {max(means):.4g}; to train")
    assert last.endswith(
        f"policy.learning_rate={best[1]} policy.gamma={best[2]} learn.repeat={best[3]} "
        f"policy.gae_lambda={best[4]} seed=0,1"
    )


def test_a_failed_trial_is_repeated_when_the_search_continues(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, repaired = tmp_path / "calls.py", tmp_path / "repaired"
    code.write_text(f"def check(*_):\n    open({str(repaired)!r})\n")
    arguments = [*BUDGET, "policy.gamma=0.9,0.99", f"run.callback={code}:check"]
    arguments += ["--trials", 1, "--sweep-dir", tmp_path / "sweep"]
    result = guerdon("sweep", "cartpole_ppo", *arguments)
    assert result.exit_code == 1
    assert "1 run failed; try again with: guerdon sweep cartpole_ppo" in result.output
    repaired.touch()
    result = guerdon("sweep", "cartpole_ppo", *arguments)
    assert result.exit_code == 0, result.output
    assert "finished trial=0: eval_return_mean" in result.output
    assert "best trial: 0, eval_return_mean" in result.output


def test_a_metric_that_is_not_there_is_named(tmp_path):
    arguments = [*BUDGET, "policy.gamma=0.9,0.99", "--trials", 1, "--sweep-dir", tmp_path / "sweep"]
    result = guerdon("sweep", "cartpole_ppo", *arguments, "--optimize", "return_mean")
    assert result.exit_code == 2
    assert "has no number 'return_mean': did you mean 'best_eval_return_mean' or" in result.stderr


def test_without_several_values_there_is_nothing_to_search(tmp_path):
    result = guerdon("sweep", "cartpole_ppo", "seed=0,1", "--sweep-dir", tmp_path / "sweep")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: nothing to search: give several values, as in policy.")
