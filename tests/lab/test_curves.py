"""Learning curves: reading, grouping, interpolation and bands."""

import json

import numpy as np
import pytest

from guerdon.config import ConfigError
from guerdon.lab import curves
from guerdon.lab.curves import Curve
from tests.rounding import assert_close


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


def test_runs_that_differ_in_how_they_were_run_are_one_group(tmp_path):
    def run(folder, **options):
        config = {"run": {"name": "ppo", **options}, "seed": 0, "policy": {"gamma": 0.9}}
        return write_run(tmp_path / folder, rewards((1, 1)), **config)

    runs = [run("a", threads=1), run("b", threads=2, name="again"), run("c", max_steps=9)]
    assert curves.group_runs(runs) == [("ppo", runs)]


def test_other_names_set_groups_apart_and_a_folder_names_itself(tmp_path):
    runs = [
        write_run(tmp_path / "a", rewards((1, 1)), run={"name": "ppo"}, policy={"gamma": 0.9}),
        write_run(tmp_path / "b", rewards((1, 1)), run={"name": "dqn"}, policy={"gamma": 0.8}),
        write_run(tmp_path / "c", rewards((1, 1))),
    ]
    assert [label for label, _ in curves.group_runs(runs)] == ["ppo", "dqn", "c"]
    others = [write_run(tmp_path / name, rewards((1, 1))) for name in ("d", "e")]
    assert [label for label, _ in curves.group_runs(others)] == ["d", "e"]


# --- mathematics


def test_the_interquartile_mean_leaves_out_the_outer_quarters():
    values = np.array([[100.0], [2.0], [0.0], [4.0]])
    assert curves.middle(values).tolist() == [3]
    assert curves.middle(values, "mean").tolist() == [26.5]
    assert curves.middle(values[:3]).tolist() == [34]  # of fewer than four runs: the mean
    eight = np.array([[1.0, 8], [2, 7], [3, 6], [4, 5], [5, 4], [6, 3], [7, 2], [80, -1]])
    assert curves.middle(eight).tolist() == [4.5, 4.5]
    assert curves.middle(np.stack([eight, 2 * eight])).tolist() == [[4.5, 4.5], [9, 9]]


def test_the_band_of_the_interquartile_mean_is_narrower_with_an_outlier():
    values = np.append(np.arange(11.0), 1000.0)[:, None]
    rng = np.random.default_rng(0)
    (low,), (high,) = curves.bootstrap_band(values, rng)
    (mean_low,), (mean_high,) = curves.bootstrap_band(values, rng, "mean")
    assert 1 <= low < curves.middle(values)[0] == 5.5 < high < 10
    assert mean_low < values.mean() < mean_high
    assert mean_high > 100


def test_smoothing_is_not_biased_towards_the_first_value():
    curve = Curve(np.arange(3.0), np.array([4.0, 1.0, 1.0]))
    assert curves.smoothed(curve, 0.0).values.tolist() == [4, 1, 1]
    # Weights of 4, 1, 1 with 0.5: 1; 1/3, 2/3; 1/7, 2/7, 4/7.
    assert_close(curves.smoothed(curve, 0.5).values, [4, 2, 10 / 7])
    np.testing.assert_allclose(curves.smoothed(curve, 0.99).values, [4, 2.5, 2], atol=0.02)
    with pytest.raises(ValueError, match="from 0 to below 1, not 1"):
        curves.smoothed(curve, 1)


def test_curves_are_interpolated_over_the_steps_they_share():
    one = Curve(np.array([0.0, 10.0]), np.array([0.0, 100.0]))
    other = Curve(np.array([2.0, 4.0, 8.0]), np.array([1.0, 3.0, 3.0]))
    grid, values = curves.on_grid([one, other], points=4)
    assert grid.tolist() == [2, 4, 6, 8]
    assert values.tolist() == [[20, 40, 60, 80], [1, 3, 3, 3]]


def test_single_points_are_averaged_at_their_mean_step():
    points = [Curve(np.array([step]), np.array([step + 2])) for step in (4.0, 6.0)]
    grid, values = curves.on_grid(points)
    assert (grid.tolist(), values.tolist()) == ([5], [[6], [8]])


def test_curves_without_common_steps_are_refused():
    early, late = (Curve(np.array([at, at + 1]), np.zeros(2)) for at in (0.0, 1000.0))
    with pytest.raises(ConfigError, match="until step 1 and another from step 1,000 on"):
        curves.on_grid([early, late])


def test_a_plot_needs_a_run():
    with pytest.raises(ConfigError, match="there is no run to plot"):
        curves.plot([])


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
    assert_close(values.mean(0), [1, 2, 3])
    assert (low < values.mean(0)).all()
    assert (values.mean(0) < high).all()


# --- plots


def test_a_plot_has_a_title_a_smooth_curve_and_a_legend_beside_the_axes(tmp_path):
    runs = [
        write_run(tmp_path / f"{seed}", rewards((0, 0), (10, seed)), run={"name": "ppo"}, seed=seed)
        for seed in (1, 2, 3, 40)
    ]
    figure = curves.plot(runs, title="CartPole", smooth=0.5, out=tmp_path / "new" / "plot.svg")
    (axes,), (line,) = figure.axes, figure.axes[0].lines
    assert (tmp_path / "new" / "plot.svg").is_file()
    assert axes.get_title() == "CartPole"
    assert axes.get_ylabel() == "eval/mean_reward (interquartile mean)"
    assert line.get_ydata()[[0, -1]] == pytest.approx([0, 5 / 3])  # 2/3 of 2.5
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ppo, 4 seeds"]
    assert axes.get_legend() is None
    figure.draw_without_rendering()
    assert legend.get_window_extent().y1 <= axes.get_tightbbox().y0
    assert curves.plot(runs, center="mean").axes[0].lines[0].get_ydata()[-1] == pytest.approx(11.5)


def test_every_curve_looks_different_and_the_legend_has_a_place_for_all(tmp_path):
    runs = [
        write_run(
            tmp_path / f"a{n}", rewards((0, 0), (1, n)), run={"name": "a" * 40}, policy={"n": n}
        )
        for n in range(25)
    ]
    figure = curves.plot(runs)
    looks = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(looks) == 25
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert figure.axes[0].get_window_extent().height > 200


# --- offline policies


def bc_and_ppo(tmp_path):
    runs = [
        write_run(
            tmp_path / f"bc{seed}", rewards((500, 0), (2_000, 10 + 2 * seed)),
            run={"name": "bc"}, seed=seed, policy={"type": "bc"},
        )
        for seed in range(2)
    ]  # fmt: skip
    return runs, write_run(
        tmp_path / "ppo", rewards((0, 0), (50_000, 100)),
        run={"name": "ppo"}, policy={"type": "ppo"},
    )  # fmt: skip


def test_updates_of_an_offline_policy_are_not_drawn_as_environment_steps(tmp_path):
    cloned, trained = bc_and_ppo(tmp_path)
    figure = curves.plot([*cloned, trained])
    level, curve = figure.axes[0].lines
    assert set(level.get_ydata()) == {11}
    assert list(level.get_xdata()) == [0, 1]  # from edge to edge, whatever the steps are
    assert curve.get_xdata()[[0, -1]].tolist() == [0, 50_000]
    assert figure.axes[0].get_xlabel() == "environment steps"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "bc, 2 seeds, offline: after 2,000 updates", "ppo, 1 seed"
    ]  # fmt: skip
    assert level.get_color() != curve.get_color()


def test_offline_policies_alone_are_drawn_over_updates(tmp_path):
    cloned, _ = bc_and_ppo(tmp_path)
    figure = curves.plot(cloned)
    (line,) = figure.axes[0].lines
    assert line.get_xdata()[[0, -1]].tolist() == [500, 2_000]
    assert figure.axes[0].get_xlabel() == "updates"


def test_a_policy_that_names_code_is_not_imported(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('it was run')")
    policy = {"type": f"{tmp_path}/mine.py:Mine"}
    run = write_run(tmp_path / "a", rewards((1, 1)), run={"name": "a"}, policy=policy)
    assert curves.unit_of_steps(run) == "environment steps"
