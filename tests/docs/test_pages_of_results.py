"""Pages with figures say what the committed results say, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_the_page_of_learning_results_is_made_of_the_files():
    import learning
    import learning_report

    rows = learning.SOLVED, learning.ABOVE_RANDOM, learning.ON_RAY
    made = learning_report.page(*rows, learning.RESULTS)
    assert (ROOT / "docs" / "results.md").read_text() == made


def test_the_page_of_reward_results_is_made_of_the_files():
    import reward_learning
    import reward_report
    import reward_rows

    made = reward_report.page(reward_rows.SECTIONS, reward_learning.RESULTS)
    assert (ROOT / "docs" / "reward_results.md").read_text() == made


def test_the_page_of_exploited_rewards_is_made_of_the_files():
    import hacking
    import hacking_report

    made = hacking_report.page(hacking.TASKS, hacking.RESULTS)
    assert (ROOT / "docs" / "hacking.md").read_text() == made


def test_intervals_of_shares():
    """By hand: 8 of 10, and the ends."""
    import hacking_report

    low, high = hacking_report.wilson(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert hacking_report.wilson(0, 4)[0] == 0.0
    assert hacking_report.wilson(4, 4)[1] == pytest.approx(1.0)
    runs = [
        {"hacked": hacked, "alarms": alarms}
        for hacked, alarms in ((True, ["shift"]), (True, []), (False, ["shift"]), (False, []))
    ]
    assert hacking_report.precision_and_recall(runs) == ((1, 2), (1, 2))


def test_the_page_of_workflow_results_is_made_of_the_files():
    import workflow_report

    assert (ROOT / "docs" / "workflow_results.md").read_text() == workflow_report.page()


def test_every_stage_of_the_workflow_results_can_be_composed():
    import workflow_learning

    for chain in workflow_learning.CHAINS:
        before = set()
        for stage in chain.stages:
            kept = workflow_learning.said(chain, stage, 0)
            assert "{" not in kept["command"].replace("{classifier: {}, env: {weight: 0.1}}", "")
            assert set(stage.needs) <= before
            before.add(stage.name)


def test_the_page_of_costs_is_made_of_its_file():
    import rewards

    made = rewards.page(json.loads(rewards.RESULTS.read_text()))
    assert rewards.PAGE.read_text() == made


def test_the_page_of_start_up_is_made_of_its_file():
    import startup

    assert startup.PAGE.read_text() == startup.page(json.loads(startup.RESULTS.read_text()))


def test_seeds_are_run_in_order_and_none_is_left_out():
    import learning
    import reward_learning
    import reward_rows
    import trials

    rows = [(row, learning.RESULTS) for row in (*learning.SOLVED, *learning.ABOVE_RANDOM)]
    rows += [(row, reward_learning.RESULTS) for each in reward_rows.SECTIONS for row in each.rows]
    for row, results in rows:
        there = [trials.result_file(row, seed, results).exists() for seed in range(row.seeds)]
        assert there == sorted(there, reverse=True), row.name


def test_the_page_of_speed_is_made_of_its_file():
    page = ROOT / "docs" / "benchmarks_training.md"
    if not (ROOT / "benchmarks" / "results" / "training.json").exists():
        assert not page.exists()
        return
    before = page.read_bytes()
    try:
        subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "training.py"), "--page"],
            check=True, capture_output=True,
        )  # fmt: skip
        assert page.read_bytes() == before
    finally:
        page.write_bytes(before)
