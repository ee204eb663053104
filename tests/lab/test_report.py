"""The report of a run, of a fit and of the three stages: what it says, and how it looks."""

import base64
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from guerdon.data.frames import Trajectory, read_trajectory, write_trajectory
from guerdon.lab import page, report
from guerdon.lab.curves import Curve
from guerdon.lab.report import HOW, log_warnings, return_warnings, workflow_table, write_report
from guerdon.reward.success_classifier import ClassifierReward
from guerdon.training.fit import fit
from guerdon.training.run import train
from guerdon.training.workflow import WorkflowResult, run_workflow
from tests.training import picturing
from tests.training.staging import TINY

RESULT = WorkflowResult(
    seed=7,
    collect={"env_steps": 40_960, "eval_success_rate": 0.98},
    trajectories={"positive": 300, "negative": 120},
    fit={"pr_auc": 0.9914, "precision": 0.95, "recall": 0.876, "calibration_error": 0.0123},
    learn={
        "env_steps": 61_440, "eval_success_rate": 0.96,
        "eval_success_at_prediction": 0.94, "eval_model_success_rate": 1.0,
    },
    seconds={"collect": 20.4, "fit": 31.5, "learn": 60.0},
)  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Small stages of its own: the folder, and the result."""
    folder = tmp_path_factory.mktemp("ran") / "it's here"
    return folder, run_workflow(folder, TINY, display="none")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a learned and a known term."""
    folder = tmp_path_factory.mktemp("run") / "two <terms>"
    train(
        "cartpole_ppo", "run.max_steps=256", "collect.n_step=64", "learn.batch_size=64",
        "learn.repeat=1", "eval.episodes=2", "eval.every=64", "run.log_every=64",
        "reward.terms={rnd: {warmup: 8, weight: 0.5}, env: {weight: 1.0}}",
        "run.name='two <terms>'", f"run.dir='{folder}'", display="none",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit to small images."""
    root = tmp_path_factory.mktemp("fit")
    picturing.write(root / "data")
    data = [f"reward.data.{kind}_dir={root / 'data' / kind}" for kind in ("positive", "negative")]
    fit(picturing.config(root / "classifier", *data), display="none")
    return root / "classifier"


def headings(text):
    return re.findall(r"<h(\d)>([^<]*)</h", text)


def pictures(text):
    codes = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(code)))) for code in codes]


# --- a run


def test_the_page_of_a_run_has_its_curves_its_reward_and_its_config(run):
    path = write_report(run)
    assert path == run / "report.html"
    text = path.read_text()
    titles = [title for _, title in headings(text)]
    assert titles == ["two &lt;terms&gt;", "Curves", "Reward", "Training", "Configuration"]
    assert "CartPole-v1 · ppo · reward: rnd (weight 0.5) + env · seed 0 · stopped at" in text
    for title in ("True return", "Learned return", "Episode length"):
        assert f"<b>{title}</b>" in text
    for metric in ("mean", "std", "rnd/mean", "env/mean"):
        assert f"<td>{metric}</td><td><svg" in text
    assert "<summary>config.yaml</summary>" in text
    assert "warmup: 8" in text
    assert "Command, versions and machine" in text
    assert "<script" not in text
    assert "$" not in text


def test_the_page_can_be_written_elsewhere_and_again(run, tmp_path):
    out = tmp_path / "new" / "page.html"
    assert write_report(run, out) == write_report(run, out) == out
    assert out.read_text().startswith("<!doctype html>")


def test_a_run_that_was_killed_at_once_has_a_page_too(run, tmp_path):
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    (tmp_path / "metrics.jsonl").write_text("")
    text = write_report(tmp_path).read_text()
    assert "has not ended" in text
    assert [title for _, title in headings(text)] == ["two &lt;terms&gt;", "Configuration"]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a run directory: it has no config\.yaml"):
        write_report(tmp_path)


def test_videos_are_part_of_the_page_unless_they_are_large(run, monkeypatch):
    film = run / "videos" / "episode_1.mp4"
    film.write_bytes(b"a film")
    try:
        code = base64.b64encode(b"a film").decode()
        assert f'src="data:video/mp4;base64,{code}"' in write_report(run).read_text()
        monkeypatch.setattr(page, "EMBEDDED", 3)
        assert f'src="{film.resolve().as_uri()}"' in write_report(run).read_text()
    finally:
        film.unlink()


# --- warnings


def returns(true, learned):
    steps = 100.0 * np.arange(len(true))
    return {
        "eval/mean_reward": Curve(steps, np.array(true, float)),
        "reward/eval_return": Curve(steps, np.array(learned, float)),
    }


def test_a_learned_return_that_rises_while_the_true_one_falls_is_a_warning():
    (warning,) = return_warnings(returns([0, 80, 100, 30], [1, 2, 3, 9]))
    assert warning == (
        "from step 200 to 300 the learned return rises from 3 to 9, but the true return falls "
        "from 100 to 30: the policy may exploit the reward"
    )


@pytest.mark.parametrize(
    ("true", "learned"),
    [
        ([0, 80, 100, 90], [1, 2, 3, 9]),  # a little
        ([0, 80, 100, 30], [1, 2, 9, 3]),  # both fall
        ([0, 80, 100, 120], [1, 2, 9, 10]),  # both rise
        ([499, 500, 499, 499], [1, 2, 3, 4]),  # noise
        ([], []),
    ],
)
def test_other_returns_are_not(true, learned):
    assert return_warnings(returns(true, learned)) == []
    assert return_warnings({"eval/mean_reward": returns(true, learned)["eval/mean_reward"]}) == []


def test_of_warnings_in_the_log_the_newest_of_each_kind_counts():
    log = (
        "2026-01-02 03:04:05 started at step 0\n"
        "2026-01-02 03:04:05 step 10: the policy cheats its reward: predicted success 80%\n"
        "2026-01-02 03:04:06 step 20: the policy cheats its reward: predicted success 100%\n"
        "2026-01-02 03:04:06 Warning: PR-AUC is 0.5\n"
        "2026-01-02 03:04:07 stopped: max_steps\n"
    )
    assert log_warnings(log) == [
        "step 20: the policy cheats its reward: predicted success 100%",
        "PR-AUC is 0.5",
    ]
    assert page.warning_list([]) == ""
    assert page.warning_list(["a < b"]) == '<ul class="warnings"><li>A &lt; b.</li></ul>'


# --- a fit


def test_the_page_of_a_fit_has_curves_and_the_worst_mistakes(fitted):
    text = write_report(fitted).read_text()
    assert ("2", "Frames") in headings(text)
    for title in ("Loss", "Validation frames", "Precision over recall", "Calibration"):
        assert f"<b>{title}</b>" in text
    rows = [title for level, title in headings(text) if level == "4"]
    assert rows == [
        "No success, the highest probabilities",
        "Success, the lowest probabilities",
        "Predicted success, drawn at random",
    ]
    found = pictures(text)
    assert len(found) == 24
    assert {each.shape for each in found} == {(32, 32, 3)}
    captions = re.findall(r"<figcaption>(\d\.\d{3}) (success|no success)</figcaption>", text)
    assert [word for _, word in captions[:16]] == ["no success"] * 8 + ["success"] * 8
    negative, positive = ([float(each) for each, _ in captions[i : i + 8]] for i in (0, 8))
    assert negative == sorted(negative, reverse=True)
    assert positive == sorted(positive)


def test_the_page_of_a_fit_has_probes_and_suspected_labels(tmp_path):
    picturing.write(tmp_path / "data", number=90)
    for path in sorted((tmp_path / "data" / "positive").iterdir())[:12]:
        found = read_trajectory(path)
        path.unlink()
        labels = found.labels.copy()
        labels[:2] = 1  # which are failures
        write_trajectory(path.parent, Trajectory(found.images, labels, True))
    folders = [
        f"reward.data.{kind}_dir={tmp_path / 'data' / kind}" for kind in ("positive", "negative")
    ]
    section = {"data": {"check_labels": True}, "num_epochs": 4}
    fit(picturing.config(tmp_path / "fit", *folders, **section), display="none")
    text = write_report(tmp_path / "fit").read_text()
    for kind in ("uniform colours", "occluded", "clipped episodes"):
        assert f"<td>{kind}</td>" in text
    assert ("4", "Suspected labels") in headings(text)
    listed = re.findall(
        r"<figcaption>\d\.\d{3} success · (\d+\.npz), frame (\d)</figcaption>", text
    )
    assert len(listed) >= 5
    assert all(int(frame) < 2 for _, frame in listed)


def test_frames_that_are_gone_or_changed_are_not_shown(fitted, tmp_path, monkeypatch):
    folder = fitted.parent / "data" / "positive"
    folder.rename(tmp_path / "away")
    try:
        text = write_report(fitted).read_text()
        assert f"The frames cannot be shown: there is no folder {folder}" in text
        assert not pictures(text)
    finally:
        (tmp_path / "away").rename(folder)
    monkeypatch.setattr(report, "read_frames", lambda _: picturing.frames(seed=1))
    assert "they have changed since the fit" in write_report(fitted).read_text()


def test_images_of_any_number_of_channels_and_cameras_are_shown():
    for channels, shape in ((1, (4, 5)), (2, (4, 5)), (3, (4, 5, 3)), (9, (4, 5, 3))):
        image = np.full((channels, 4, 5), 7, np.uint8)
        assert np.asarray(Image.open(io.BytesIO(page.png(image)))).shape == shape
    two = {"one": np.zeros((3, 4, 5), np.uint8), "other": np.full((3, 8, 9), 9, np.uint8)}
    text = page.images("two cameras", [two], ["a & b"], [True])
    assert [found.shape for found in pictures(text)] == [(4, 5, 3), (8, 9, 3)]
    assert 'class="wrong"' in text
    assert "<figcaption>a &amp; b</figcaption>" in text
    assert page.images("none", []) == ""


# --- charts


def test_a_chart_puts_points_where_they_belong():
    curve = Curve(np.array([0.0, 50.0, 100.0]), np.array([-1.0, 0.0, 3.0]))
    text = page.chart("T & U", {"a": curve, "none": Curve(np.zeros(0), np.zeros(0))})
    assert re.findall(r'points="([^"]*)"', text) == ["52.0,216.0 255.0,164.5 458.0,10.0"]
    labels = re.findall(r'<text class="[xy]"[^>]*>([^<]*)<', text)
    assert labels[:6] == ["0", "20", "40", "60", "80", "100"]
    assert labels[6:] == ["-1", "0", "1", "2", "3", "environment steps"]
    assert "T &amp; U" in text
    assert "none" not in text
    assert page.chart("nothing", {}) == ""


def test_a_chart_of_one_point_or_a_constant_has_a_range():
    one = page.chart("one", {"a": Curve(np.array([5.0]), np.array([0.0]))})
    assert '<circle cx="255.0" cy="113.0"' in one
    constant = page.chart("same", {"a": Curve(np.array([0.0, 1e6]), np.array([500.0, 500.0]))})
    assert ">500<" in constant
    assert ">1M<" in constant


def test_long_curves_keep_their_ends():
    steps = np.arange(10_000.0)
    (points,) = re.findall(r'points="([^"]*)"', page.chart("long", {"a": Curve(steps, steps)}))
    assert len(points.split()) <= 600
    assert points.startswith("52.0,216.0 ")
    assert points.endswith(" 458.0,10.0")


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.345, "12.3"), (0.012345, "0.0123"), (0.0, "0")]
)
def test_numbers_are_short(value, text):
    assert page.number(value) == text


# --- the three stages


def test_the_table_says_all_that_matters():
    rows = {name.strip(): value for name, value in workflow_table(RESULT)}
    assert rows == {
        "Trajectories with and without success": "300, 120",
        "Classifier on test episodes: PR-AUC": "0.991",
        "precision, recall at its threshold": "0.950, 0.876",
        "calibration error": "0.012",
        "True success at the last step, no exploration:": "",
        "environment reward, 40,960 steps": "98%",
        "classifier alone, 61,440 steps": "96%",
        "Predicted success, classifier alone": "100%",
        "true success at the first prediction": "94%",
        "Seconds per stage": "20 + 32 + 60",
    }


def test_what_is_not_known_is_a_dash():
    unknown = replace(
        RESULT, learn={"env_steps": 0}, fit={"pr_auc": 0.5, "precision": None, "recall": 0.0,
                               "calibration_error": None},
    )  # fmt: skip
    rows = {name.strip(): value for name, value in workflow_table(unknown)}
    assert rows["precision, recall at its threshold"] == "-, 0.000"
    assert rows["calibration error"] == "-"
    assert rows["classifier alone, 0 steps"] == "-"


def test_the_page_of_the_stages_has_the_table_and_each_stage(ran):
    folder, result = ran
    text = write_report(folder).read_text()
    for name, value in workflow_table(result):
        assert f"<td>{name.replace(chr(39), '&#x27;')}</td><td>{value}</td>" in text
    assert f"Seed {result.seed}." in text
    assert HOW.partition(":")[0] in text
    assert [title for level, title in headings(text) if level == "2"] == [
        "The classifier",
        "The policy trained on the classifier alone",
        "The policy that collected the images",
    ]
    assert text.count("Precision over recall") == 2  # the title, and its label: once
    assert ("4", "Last frames of positive trajectories") in headings(text)


def test_the_page_of_a_run_with_a_classifier_shows_the_classifier(ran):
    folder, _ = ran
    text = write_report(folder / "learn").read_text()
    assert ("2", "Classifier") in headings(text)
    assert ("4", "Success, the lowest probabilities") in headings(text)


def test_the_page_of_such_a_run_shows_what_its_policy_gets_success_for(ran, monkeypatch):
    folder, _ = ran
    text = report._predicted(folder / "learn")
    claimed, played = map(int, re.findall(r"success in (\d) of (\d) episodes of the best", text)[0])
    assert played == 8
    assert len(pictures(text)) == claimed
    monkeypatch.setattr(ClassifierReward, "threshold", 0.0)
    every = report._predicted(folder / "learn")
    assert "predicts success in 8 of 8 episodes" in every
    captions = re.findall(r"<figcaption>\d\.\d{3} (success|no success)</figcaption>", every)
    assert len(captions) == len(pictures(every)) == 8
    assert captions.count("no success") == every.count('class="wrong"')
    monkeypatch.setattr(report, "load_reward", lambda _: 1 / 0)
    assert "cannot be played here: division by zero." in report._predicted(folder / "learn")


# --- in a browser


MEASURE = """<script>addEventListener("load", () => {
document.body.dataset.found = JSON.stringify({
  images: [...document.images].map(each => each.naturalWidth),
  charts: [...document.querySelectorAll("figure.chart svg")].map(each => each.clientHeight),
  headings: [...document.querySelectorAll("h1, h2")].map(each => each.innerText),
  page: document.body.clientWidth, content: document.body.scrollWidth,
}) })</script>"""


def chromium(*arguments):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    command = [browser, *options, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_whole_page(ran, tmp_path, width):
    folder, _ = ran
    text = write_report(folder, tmp_path / "page.html").read_text()
    measured = tmp_path / "measured.html"
    # A window has 500 pixels at least.
    style = f"<style>body {{ width: {width}px; max-width: none }}</style>"
    measured.write_text(text.replace("</body>", f"{style}{MEASURE}</body>"))
    shot = tmp_path / "shot.png"
    dom = chromium("--dump-dom", f"--window-size={width},900", measured.as_uri())
    (found,) = re.findall(r'data-found="([^"]*)"', dom)
    found = json.loads(found.replace("&quot;", '"'))
    assert found["headings"][:2] == ["A reward learned from images", "The classifier"]
    assert len(found["images"]) == len(pictures(text)) > 0
    assert min(found["images"]) == 64
    assert min(found["charts"]) > 150
    assert found["content"] <= found["page"] == width  # nothing is cut off at the right
    chromium(f"--screenshot={shot}", f"--window-size={width},900", measured.as_uri())
    with Image.open(shot) as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) > 50  # not blank


def test_text_in_tables_is_escaped():
    assert "<svg" not in page.table([("<svg onload=alert(1)>", "a")])
