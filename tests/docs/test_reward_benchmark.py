"""The benchmark of rewards: its rows, its runs, and what its page says of results."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def written(folder, row, returns):
    """Write results with these returns; None is a run that failed."""
    for seed, value in enumerate(returns):
        summary = {"eval_return_mean": value, "wall_seconds": 3.0, "env_steps": 10}
        ended = {"summary": summary, "curve": [[5, 0.0], [10, value]]}
        content = {"error": "broke"} if value is None else ended
        (folder / f"{row.name}_{seed}.json").write_text(json.dumps(content))


def test_every_row_can_be_composed_and_names_rows_of_its_table():
    import reward_rows
    import trials

    names = []
    for section in reward_rows.SECTIONS:
        rows = {row.name: row for row in section.rows}
        for row in section.rows:
            config = trials.config_of(row)
            assert row.goal is not None, row.name
            assert {row.baseline, *row.controls} - {""} <= rows.keys(), row.name
            if row.reward_of is not None:
                assert config["reward_of"] == trials.config_of(row.reward_of)
                assert config["reward"]["terms"].keys() == {"env"}  # which --from-reward replaces
        names += rows
    assert len(names) == len(set(names))


def test_imitation_has_a_clone_and_controls_with_the_same_options():
    import reward_rows
    import trials

    found = fixed = 0
    for section in reward_rows.SECTIONS:
        rows = {row.name: row for row in section.rows}
        for row in (row for row in section.rows if row.baseline):
            for name in (name for name in row.controls if name.endswith("_random")):
                ours, theirs = trials.config_of(row), trials.config_of(rows[name])
                texts = [json.dumps(config, sort_keys=True) for config in (ours, theirs)]
                data = row.baseline.removesuffix("_bc")
                assert texts[0].replace(f'"zoo:{data}"', f'"zoo:{data}_random"') == texts[1]
                found += 1
            for name in (name for name in row.controls if name.endswith("_constant")):
                ours, theirs = dict(trials.config_of(row)), dict(trials.config_of(rows[name]))
                ours["reward"] = {**ours["reward"], "terms": theirs["reward"]["terms"]}
                assert list(theirs["reward"]["terms"]) == ["constant"]
                assert ours == theirs
                fixed += 1
            clone = trials.config_of(rows[row.baseline])["policy"]
            model = trials.config_of(row)
            given = {**model["policy"], **next(iter(model["reward"]["terms"].values()))}
            for key in ("expert_data_path", "episodes", "subsample"):
                if not str(given["expert_data_path"]).startswith("expert:"):  # of the clone
                    assert given[key] == clone[key]
    assert found > 15
    assert fixed > 15


def test_a_transfer_has_a_row_for_every_reward_and_change():
    import reward_rows
    import trials

    (section,) = (s for s in reward_rows.SECTIONS if isinstance(s, reward_rows.Transfer))
    assert set(section.cells) == {*section.learned, *section.others}
    for cells in section.cells.values():
        assert list(cells) == list(section.changes)
        kwargs = [trials.config_of(row)["env"]["kwargs"] for row in cells.values()]
        assert kwargs[0] == {}
        assert all(kwargs[1:])
    assert set(section.claims) <= set(section.learned)


def test_the_page_says_what_falls_short_and_what_is_not_shown(tmp_path):
    import reward_report
    import reward_rows
    from trials import Row

    clone, control = Row("bc", 100.0), Row("random", 100.0, is_control=True)
    good = Row("good", 100.0, baseline="bc", controls=("random",))
    weak = Row("weak", 100.0, baseline="bc", controls=("random",))
    failed = Row("failed", 100.0, baseline="bc", controls=("random",))
    unsure, late = Row("unsure", 100.0), Row("late", 100.0)
    section = reward_rows.Section("A", "Text.", (clone, control, good, weak, failed, unsure, late))
    for row, values in (
        (clone, [50.0, 52, 51, 49, 50]),
        (control, [10.0, 12, 150, 9, 10]),
        (good, [200.0, 200, 199, 200, 200]),
        (weak, [99.0, 51, 50, 20, 0]),
        (failed, [300.0, 300, 300, 300, None]),
        (unsure, [150.0, 140, 130, 120, 20]),
    ):
        written(tmp_path, row, values)
    page = reward_report.page([section], tmp_path)
    lines = {line.split("`")[1]: line.split(" | ") for line in page.splitlines() if "| `" in line}
    assert lines["good"][2:4] == ["5 of 5", "199.8 (199.4 to 200.0)"]
    assert lines["good"][4:6] == ["higher", "higher"]
    assert lines["weak"][2] == "0 of 5"
    assert lines["weak"][4:6] == ["not shown", "not shown"]
    assert lines["failed"][2:4] == ["4 of 5", "300.0 (300.0 to 300.0)"]
    assert lines["late"][2].startswith("not run yet")
    text = page.replace("\n", " ")
    assert (
        "Short of the goal on at least one seed: `bc` (0 of 5 seeds, its mean is 49.6 below), "
        "`weak` (0 of 5 seeds, its mean is 56.0 below), `failed` (4 of 5 seeds), "
        "`unsure` (4 of 5 seeds)." in text
    )
    assert (
        "Mean not shown to be above the goal, which is inside its 95 % interval: `unsure`." in text
    )
    assert "Not shown to be higher than cloning the same demonstrations: `weak`." in text
    assert "Not shown to be higher than the controls: `weak`." in text
    assert "Rows for comparison that reach the goal: `random` (1 of 5)." in text


def test_transfer_is_claimed_only_where_every_seed_reaches_the_goal(tmp_path):
    import reward_report
    import reward_rows

    (section,) = (s for s in reward_rows.SECTIONS if isinstance(s, reward_rows.Transfer))
    section = replace(section, learned={"airl": section.learned["airl"]}, others={})
    text = "\n".join(reward_report.grid(section, tmp_path))
    assert text.count("not run yet") == 5
    assert "claim" not in text
    same, *others = section.cells["airl"].values()
    for row in (section.learned["airl"], same, *others):
        written(tmp_path, row, [500.0] * 5)
    text = " ".join(reward_report.grid(section, tmp_path))
    assert "robust to changed dynamics holds here" in text
    written(tmp_path, others[0], [500.0] * 4 + [400.0])
    text = " ".join(reward_report.grid(section, tmp_path))
    assert "heavier pole: none" in text
    assert "not confirmed here: not every seed reaches the goal with heavier pole." in text
    assert "480.0, 440.0 to 500.0 (4 of 5)" in text


def test_differences_of_means_have_intervals():
    import reward_report

    one, other = np.array([10.0, 12, 11, 9, 10]), np.array([5.0, 4, 6, 5, 5])
    low, high = reward_report.difference(one, other)
    assert 4 < low < 5.4 < high < 7
    found = {"a": [{"summary": {"eval_return_mean": value}} for value in other]}
    assert reward_report.compared(one, found, ["a"]) == "higher"
    assert reward_report.compared(other - 3, found, ["a"]) == "lower"
    assert reward_report.compared(other + 0.1, found, ["a"]) == "not shown"
    assert reward_report.compared(one, found, ["a", "not run"]) == ""


def test_a_policy_is_trained_on_the_reward_of_another_row(tmp_path, monkeypatch):
    import trials

    monkeypatch.setattr(trials, "RUNS", tmp_path / "runs")
    moment = ("run.max_updates=1", "eval.episodes=2", "eval.n_envs=2")
    source = trials.Row("cartpole_fixed_ppo_red", seeds=1, overrides=moment)
    row = trials.Row(
        "cartpole_fixed_ppo", seeds=1, variant="on_red", reward_of=source,
        overrides=(*moment, "env.kwargs={gravity: 12.0}"),
    )  # fmt: skip
    results = tmp_path / "results"
    assert trials.run_missing([row], results, 1, minutes=0.0) == []
    assert not results.exists()  # time was up before the first run
    assert trials.run_missing([row], results, 2) == []
    (result,) = trials.results_of(row, results)
    assert "--from-reward" in result["command"]
    assert result["config"]["reward_of"]["reward"]["terms"].keys() == {"red"}
    assert trials.is_done(row, 0, results)
    assert len(trials.results_of(source, results)) == 1
    other = replace(source, preset="cartpole_fixed_ppo_pwil")
    assert not trials.is_done(replace(row, reward_of=other), 0, results)
    kept = trials.reward_folder(source, 0)
    before = kept.stat().st_mtime_ns
    trials.result_file(row, 0, results).unlink()
    assert trials.run_missing([row], results, 1) == []
    assert kept.stat().st_mtime_ns == before  # the reward was not learned again
