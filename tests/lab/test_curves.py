"""Learning curves: reading, grouping, interpolation and bands."""

import json

import numpy as np
import pytest

from guerdon.config import ConfigError
from guerdon.lab import curves
from guerdon.lab.curves import Curve


def write_run(folder, rows, **config):
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": step, "time": 0.5 * step, **metrics}) for step, metrics in rows]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if config:
        (folder / "config.yaml").write_text(json.dumps(config))
    return folder


def rewards(*pairs):
    return [(step, {"eval/mean_reward": value}) for step, value in pairs]


# --- reading


def test_a_metric_is_read_where_it_was_written(tmp_path):
    rows = [(1, {"loss": 0.5}), *rewards((2, 10), (4, 20)), (5, {"eval/mean_reward": None})]
    curve = curves.read_curve(write_run(tmp_path / "a", rows), "eval/mean_reward")
    assert curve.steps.tolist() == [2, 4]
    assert curve.values.tolist() == [10, 20]


def test_what_a_resumed_run_writes_again_counts(tmp_path):
    run = write_run(tmp_path / "a", rewards((1, 10), (2, 20), (3, 30), (2, 21), (3, 31), (4, 40)))
    curve = curves.read_curve(run, "eval/mean_reward")
    assert curve.steps.tolist() == [1, 2, 3, 4]
    assert curve.values.tolist() == [10, 21, 31, 40]


def test_a_broken_line_and_numbers_that_are_none_are_left_out(tmp_path):
    run = write_run(tmp_path / "a", rewards((1, 10), (2, float("nan")), (3, 30)))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "eval/mean_rew')
    assert curves.read_curve(run, "eval/mean_reward").steps.tolist() == [1, 3]


def test_a_metric_or_a_folder_that_is_not_there_is_named(tmp_path):
    run = write_run(tmp_path / "a", rewards((1, 10)))
    with pytest.raises(ConfigError, match="no metric 'eval/mean_rewrd': did you mean 'eval/mean_r"):
        curves.read_curve(run, "eval/mean_rewrd")
    with pytest.raises(ConfigError, match=r"is not a run directory: it has no metrics\.jsonl"):
        curves.read_curve(tmp_path, "eval/mean_reward")


# --- grouping


def test_runs_that_differ_only_in_seed_and_folder_are_one_group(tmp_path):
    def run(name, seed, gamma):
        config = {"run": {"name": "ppo", "dir": name}, "seed": seed, "policy": {"gamma": gamma}}
        return write_run(tmp_path / name, rewards((1, 1)), **config)

    runs = [run("a", 0, 0.9), run("b", 0, 0.99), run("c", 1, 0.9)]
    groups = curves.group_runs(runs)
    assert groups == [
        ("ppo (policy.gamma=0.9)", [runs[0], runs[2]]),
        ("ppo (policy.gamma=0.99)", [runs[1]]),
    ]


def test_other_names_set_groups_apart_and_a_folder_names_itself(tmp_path):
    runs = [
        write_run(tmp_path / "a", rewards((1, 1)), run={"name": "ppo"}, policy={"gamma": 0.9}),
        write_run(tmp_path / "b", rewards((1, 1)), run={"name": "dqn"}, policy={"gamma": 0.8}),
        write_run(tmp_path / "c", rewards((1, 1))),
    ]
    assert [label for label, _ in curves.group_runs(runs)] == ["ppo", "dqn", "c"]


# --- mathematics


def test_curves_are_interpolated_over_the_steps_they_share():
    one = Curve(np.array([0.0, 10.0]), np.array([0.0, 100.0]))
    other = Curve(np.array([2.0, 4.0, 8.0]), np.array([1.0, 3.0, 3.0]))
    grid, values = curves.on_grid([one, other], points=4)
    assert grid.tolist() == [2, 4, 6, 8]
    assert values.tolist() == [[20, 40, 60, 80], [1, 3, 3, 3]]


def test_one_point_is_a_curve_and_curves_apart_are_none():
    point = Curve(np.array([5.0]), np.array([7.0]))
    grid, values = curves.on_grid([point, point])
    assert (grid.tolist(), values.tolist()) == ([5], [[7], [7]])
    with pytest.raises(ConfigError, match="no steps in common"):
        curves.on_grid([point, Curve(np.array([6.0]), np.array([7.0]))])


def test_the_band_of_equal_runs_has_no_width():
    values = np.full((3, 2), 4.0)
    low, high = curves.bootstrap_band(values, np.random.default_rng(0))
    assert low.tolist() == high.tolist() == [4, 4]


def test_the_band_is_that_of_all_draws_of_two_runs():
    # Means of two draws of {0, 1}: 0, 0.5, 0.5, 1, each a quarter of the time.
    values = np.array([[0.0], [1.0]])
    rng = np.random.default_rng(0)
    assert [float(end[0]) for end in curves.bootstrap_band(values, rng)] == [0.0, 1.0]
    assert [float(end[0]) for end in curves.bootstrap_band(values, rng, level=0.4)] == [0.5, 0.5]


def test_the_band_holds_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 400))  # 400 experiments of 30 runs, mean 0
    low, high = curves.bootstrap_band(values, rng)
    assert 0.90 <= np.mean((low <= 0) & (high >= 0)) <= 0.98


def test_the_mean_is_inside_the_band():
    found = [Curve(np.array([0.0, 2.0]), np.array([v, v + 2.0])) for v in (0.0, 1.0, 2.0)]
    steps, values = curves.on_grid(found, points=3)
    low, high = curves.bootstrap_band(values, np.random.default_rng(0))
    assert steps.tolist() == [0, 1, 2]
    np.testing.assert_allclose(values.mean(0), [1, 2, 3])
    assert (low < values.mean(0)).all()
    assert (values.mean(0) < high).all()
