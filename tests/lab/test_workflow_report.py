"""The report of the three stages says what came out of them."""

import base64
import re
from dataclasses import replace

import pytest

from guerdon.extras import MissingExtraError
from guerdon.lab import workflow_report
from guerdon.lab.workflow_report import HOW, PICTURE, REPORT, table, write_report
from guerdon.training.workflow import WorkflowResult, run_workflow
from tests.training.staging import TINY

RESULT = WorkflowResult(
    seed=7,
    collect={"env_steps": 40_960, "eval_success_rate": 0.98},
    trajectories={"positive": 300, "negative": 120},
    fit={"pr_auc": 0.9914, "precision": 0.95, "recall": 0.876, "calibration_error": 0.0123},
    learn={
        "env_steps": 61_440,
        "eval_success_rate": 0.96, "eval_success_at_verdict": 0.94, "eval_model_success_rate": 1.0,
    },
    seconds={"collect": 20.4, "fit": 31.5, "learn": 60.0},
)  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Small stages of its own: the folder, and the result."""
    folder = tmp_path_factory.mktemp("ran") / "it's here"
    return folder, run_workflow(folder, TINY, display="none")


def test_the_table_says_all_that_matters():
    rows = {name.strip(): value for name, value in table(RESULT)}
    assert rows == {
        "Trajectories with and without success": "300, 120",
        "Classifier on held-out episodes: PR-AUC": "0.991",
        "precision, recall at its threshold": "0.950, 0.876",
        "calibration error": "0.012",
        "True success at the last step, no exploration:": "",
        "environment reward, 40,960 steps": "98%",
        "classifier alone, 61,440 steps": "96%",
        "True success where predicted": "94%",
        "predicted success": "100%",
        "Seconds per stage": "20 + 32 + 60",
    }


def test_what_is_not_known_is_a_dash():
    unknown = replace(
        RESULT, learn={"env_steps": 0}, fit={"pr_auc": 0.5, "precision": None, "recall": 0.0,
                               "calibration_error": None},
    )  # fmt: skip
    rows = {name.strip(): value for name, value in table(unknown)}
    assert rows["precision, recall at its threshold"] == "-, 0.000"
    assert rows["calibration error"] == "-"
    assert rows["classifier alone, 0 steps"] == "-"


def test_the_page_has_the_table_the_image_and_what_to_do_next(ran):
    folder, result = ran
    path = write_report(folder, result)
    assert path == folder / REPORT
    page = path.read_text()
    for name, value in table(result):
        assert f"<td>{name.replace(chr(39), '&#x27;')}</td><td>{value}</td>" in page
    assert f"Seed {result.seed}." in page
    assert HOW.partition(":")[0] in page
    (code,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    picture = base64.b64decode(code)
    assert picture == (folder / PICTURE).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert "guerdon eval &#x27;" in page  # a path with a space is quoted
    assert "{" not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL)


def test_the_image_shows_frames_of_both_kinds_with_what_the_classifier_says(ran):
    folder, _ = ran
    kinds = workflow_report._frames(folder)
    assert [title.partition(",")[0] for title, _, _ in kinds] == ["success", "no success"]
    for _, shown, said in kinds:
        assert shown.shape == (8, 64, 64, 3)
        assert said.shape == (8,)
        assert ((said >= 0) & (said <= 1)).all()


def test_writing_it_again_replaces_it(ran):
    folder, result = ran
    write_report(folder, replace(result, seed=1))
    write_report(folder, replace(result, seed=2))
    assert "Seed 2." in (folder / REPORT).read_text()


def test_without_matplotlib_the_page_says_what_is_missing(ran, monkeypatch):
    folder, result = ran

    def missing(module, extra):
        raise MissingExtraError(module, extra)

    monkeypatch.setattr(workflow_report, "require", missing)
    (folder / PICTURE).unlink(missing_ok=True)
    page = write_report(folder, result).read_text()
    assert "There are no curves here" in page
    assert "<img" not in page
    assert not (folder / PICTURE).exists()
