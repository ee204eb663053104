import copy
import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.data import Batch, Preference, load_preferences, save_preferences
from guerdon.reward import create_reward_model, make_reward, preference
from guerdon.reward.preference import query_schedule
from tests.reward.ranked import (
    ARM,
    IMAGE,
    TWO,
    VECTOR,
    check_estimate,
    correlation,
    rollout,
    rows,
    same_states,
    setting,
)
from tests.rounding import assert_close
from tests.training.running import run

QUICK = {
    "comparisons": 60,
    "initial_share": 0.5,
    "rounds": 2,
    "train_every": 100,
    "segment_length": 5,
    "update_per_collect": 60,
    "batch_size": 32,
    "hidden_size": [16],
    "learning_rate": 0.01,
}


def make(space=VECTOR, action_space=TWO, **options):
    config = {"type": "preference", **QUICK, **options}
    return create_reward_model(config, setting(space, action_space))


def taught(rounds=3, **options):
    model = make(**options)
    for number in range(rounds):
        model.collect_data(rollout((100, 2), seed=number))
        metrics = model.train()
    return model, metrics


# --- the number of queries, and when


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((200, 0.2, 4, "constant"), [40, 40, 40, 40, 40]),
        ((100, 0.4, 3, "hyperbolic"), [40, 33, 16, 11]),  # 60 in proportion to 1, 1/2, 1/3
        ((10, 0.25, 4, "constant"), [2, 2, 2, 2, 2]),
        ((50, 0.1, 0, "hyperbolic"), [50]),
        ((0, 0.2, 3, "constant"), [0, 0, 0, 0]),
    ],
)
def test_the_schedule(arguments, wanted):
    assert query_schedule(*arguments) == wanted


@pytest.mark.parametrize("schedule", ["constant", "hyperbolic"])
def test_a_schedule_has_the_configured_number_of_queries(schedule):
    for number in (7, 100, 201):
        found = query_schedule(number, 0.15, 13, schedule)
        assert sum(found) == number
        assert min(found) >= 0


def test_queries_come_in_rounds_and_end():
    model = make()
    counts = []
    for number in range(5):
        model.collect_data(rollout((50, 2), seed=number))
        metrics = model.train()
        counts.append((model.asked, metrics is None))
    assert counts == [(30, False), (50, False), (60, False), (60, True), (60, True)]


def test_it_waits_for_new_transitions():
    model = make()
    model.collect_data(rollout((49, 2)))
    assert model.train() is None
    model.collect_data(rollout((1, 2)))
    assert model.train()["comparisons"] == 30
    assert model.train() is None


# --- queries


def test_segments_do_not_depend_on_the_length_of_rollouts():
    whole, single = make(), make()
    data = rollout((100, 2), first=[0, 31, 63], ends=[30])  # the second episode is broken off
    whole.collect_data(data)
    for time in range(100):
        single.collect_data(data[time : time + 1])
    assert whole.memory.rows().length[12:26].tolist() == [1, 1, *[5] * 12]
    assert same_states(whole.memory.training_state(), single.memory.training_state())
    whole.train()
    single.train()
    assert same_states(whole.training_state(), single.training_state())


def test_the_teacher_compares_true_returns():
    model = make(comparisons=200, initial_share=1.0, validation_share=0.0)
    model.collect_data(rollout((100, 2)))
    model.train()
    pairs = model.pairs
    sums = [
        sum(pairs.rows["obs"][start + i, 0] for i in range(5))
        for start in (*pairs.first, *pairs.second)
    ]
    better = np.array(sums[200:]) > np.array(sums[:200])
    assert (better == pairs.label).all()
    assert (pairs.length == 5).all()


def test_a_short_segment_is_compared_with_the_first_part_of_another():
    model = make(comparisons=50, initial_share=1.0)
    model.collect_data(rollout((100, 2), ends=range(7, 100, 10)))
    model.train()
    # Episodes of 8, then 10 rows: 5 + 3, 5 + 5, ...
    assert set(model.pairs.length.tolist()) == {3, 5}


def test_later_queries_are_about_pairs_that_networks_disagree_on():
    model, _ = taught(1, validation_share=0.0)
    chosen = model._disagreement(*model._choose(20))
    usual = model._disagreement(*model.generator.choice(len(model.memory), (2, 300)))
    assert chosen.min() > np.quantile(usual, 0.75)
    uniform, _ = taught(1, queries="uniform", validation_share=0.0)
    chosen = uniform._disagreement(*uniform._choose(200))
    assert chosen.mean() == pytest.approx(usual.mean(), rel=0.5)


def test_a_round_may_be_held_out_as_a_whole(monkeypatch):
    model, _ = taught(1)
    monkeypatch.setattr(preference, "number_to_hold_out", lambda _, number, __: number)
    first, second = model._choose(2)
    held_out = model.memory.rows().held_out
    assert held_out[first].all()
    assert held_out[second].all()


def test_a_segment_is_never_compared_with_itself():
    model = make()
    model.collect_data(rollout((10, 1)))  # two segments
    first, second = model._choose(50)
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == {(0, 1), (1, 0)}


def test_skipped_queries_give_no_labels():
    model, metrics = taught(1, teacher={"type": "skipping", "skip": 0.7})
    assert metrics["skipped"] > 0
    assert metrics["comparisons"] == 30 - metrics["skipped"]
    assert model.asked == 30


def test_a_teacher_that_skips_all_queries():
    model, metrics = taught(3, teacher={"type": "skipping", "skip": 1.0})
    assert metrics is None or metrics["comparisons"] < 5
    assert model.round == 3


def test_old_segments_are_dropped_but_their_labels_stay():
    model, _ = taught(3, buffer_size=50)
    assert len(model.memory) == 10
    assert len(model.pairs) == 60
    model.clear_data(1)
    assert len(model.memory) == 10
    cleared = make(clear_buffer_per_iters=2)
    cleared.collect_data(rollout((50, 2)))
    cleared.train()
    cleared.clear_data(3)
    assert len(cleared.memory) == 20
    cleared.clear_data(4)
    assert len(cleared.memory) == 0
    cleared.collect_data(rollout((10, 2)))
    cleared.clear_data(6)
    assert len(cleared.memory) == 4  # not queried yet


# --- learning


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"output": "tanh"},
        {"queries": "uniform", "schedule": "constant"},
        {"teacher": {"type": "equal"}},
        {"teacher": {"type": "myopic"}},
    ],
    ids=str,
)
def test_it_learns_what_the_teacher_prefers(options):
    model, metrics = taught(**options)
    assert metrics["accuracy"] > 0.8
    assert correlation(model) > 0.85


def test_held_out_pairs_are_evaluated():
    _, metrics = taught(validation_share=0.3)
    assert metrics["validation_accuracy"] > 0.7
    assert metrics["validation_loss"] < np.log(2)


def segments_of(pairs, held_out):
    """The first rows of segments, which are different for each."""
    starts = np.stack([pairs.first, pairs.second])[:, pairs.held_out == held_out]
    return {tuple(row) for row in pairs.rows["obs"][starts.ravel()].tolist()}


@pytest.mark.parametrize("queries", ["uniform", "disagreement"])
def test_held_out_pairs_share_no_segment_with_the_others(queries):
    model, _ = taught(validation_share=0.3, queries=queries)
    assert model.pairs.held_out.sum() == 18  # of 60
    fitted, held_out = (segments_of(model.pairs, each) for each in (False, True))
    assert len(fitted) > 20
    assert not fitted & held_out


def test_preferences_of_a_file_are_split_by_segments_too(tmp_path):
    drawn = [rows((6,), seed=number) for number in range(6)]
    data = [Batch(obs=each.obs, act=each.act) for each in drawn]
    pairs = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5)]
    path = tmp_path / "a.jsonl"
    save_preferences(path, [Preference(f"{a}-{b}", data[a], data[b], 1.0) for a, b in pairs])
    model = make(preferences_path=str(path), comparisons=0, validation_share=0.4)
    assert model.pairs.held_out.tolist() == [False, False, False, True, True]


def test_a_few_segments_are_compared_even_if_all_were_held_out():
    model = make(validation_share=0.99, train_every=10)
    model.collect_data(rollout((10, 1)))
    assert model.train()["comparisons"] == 30
    assert not model.pairs.held_out.any()


def test_held_out_pairs_alone_are_not_fitted():
    model = make(validation_share=0.5)
    pair = Batch(obs=rows((5,)).obs, act=rows((5,)).act)
    model._add([(pair, pair)], np.ones(1), np.ones(1, bool))
    assert model._learn() is None
    model._add([(pair, pair)], np.ones(1), np.zeros(1, bool))
    assert model._learn()["comparisons"] == 2


def test_rewards_of_compared_segments_have_mean_0_and_standard_deviation_1():
    model, _ = taught()
    rew = model.network(model.pairs.rows)
    assert rew.mean().item() == pytest.approx(0, abs=1e-4)
    assert rew.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_bounded_rewards_lie_between_minus_1_and_1():
    model, _ = taught(output="tanh")
    rew = model.estimate(rows((100,), 50.0)).rew
    assert np.abs(rew).max() <= 1


@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_it_takes_any_spaces(space, action_space):
    options = {"update_per_collect": 2, "comparisons": 8, "batch_size": 4}
    model = make(space, action_space, inputs=["obs", "act", "obs_next"], **options)
    data = rollout((60, 2), observation_space=space, action_space=action_space)
    model.collect_data(data)
    assert model.train()["comparisons"] == 4
    assert np.isfinite(model.estimate(data).rew).all()


# --- files of preferences


def saved(path, number=40, **options):
    """A file in which the segment with larger first numbers is better."""
    drawn = [(rows((6,), seed=2 * i), rows((6,), seed=2 * i + 1)) for i in range(number)]
    preferences = [
        Preference(
            str(i),
            *(Batch(obs=each.obs, act=each.act) for each in pair),
            label=float(pair[1].rew.sum() > pair[0].rew.sum()),
            rater="anna",
        )
        for i, pair in enumerate(drawn)
    ]
    save_preferences(path, preferences)
    return {"preferences_path": str(path), **options}


def test_it_learns_from_a_file_alone(tmp_path):
    model = make(**saved(tmp_path / "a.jsonl", comparisons=0))
    metrics = model.pretrain()
    assert metrics["comparisons"] == 40
    assert correlation(model) > 0.8
    model.collect_data(rollout((100, 2)))
    assert model.train() is None
    assert model.asked == 0


def test_preferences_of_a_file_are_fitted_with_the_first_round_otherwise(tmp_path):
    model = make(**saved(tmp_path / "a.jsonl"))
    model.collect_data(rollout((100, 2)))
    assert model.train()["comparisons"] == 70


def test_without_a_file_there_is_nothing_to_pretrain():
    assert make().pretrain() is None


def test_queries_and_answers_are_recorded(tmp_path):
    path = tmp_path / "record.jsonl"
    model, _ = taught(record_path=str(path), teacher={"type": "skipping", "skip": 0.5})
    found = load_preferences(path)
    assert len(found) == model.asked == 60
    assert {each.rater for each in found} == {"synthetic skipping"}
    answers = [each.label for each in found if each.label != "skip"]
    assert answers == model.pairs.label.tolist()
    assert len(answers) < 60
    again = make(preferences_path=str(path), comparisons=0)
    assert len(again.pairs) == len(answers)
    assert "rew" not in found[0].first


def test_recorded_preferences_are_never_overwritten(tmp_path):
    path = tmp_path / "record.jsonl"
    taught(1, record_path=str(path))
    before = load_preferences(path)
    model = make(record_path=str(path))  # another run, or this one after a kill
    model.collect_data(rollout((100, 2), seed=7))
    model.train()
    after = load_preferences(path)
    assert [each.pair for each in after] == [f"{number:06d}" for number in range(60)]
    for old, new in zip(before, after, strict=False):
        np.testing.assert_array_equal(old.first.obs, new.first.obs)
    (tmp_path / "record_segments" / "old-pair.npz").touch()  # names of other kinds do not count
    model.collect_data(rollout((100, 2), seed=8))
    model.train()
    assert load_preferences(path)[-1].pair == "000079"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((6, 3), np.float32)}, "obs of the preferences in"),
        ({"act": None}, "the segments of .* have no 'act'"),
    ],
    ids=["other observations", "no actions"],
)
def test_preferences_that_do_not_fit_are_refused(tmp_path, change, message):
    path = tmp_path / "a.jsonl"
    segment = {"obs": np.zeros((6, 2), np.float32), "act": np.zeros(6, int), **change}
    segment = Batch({name: value for name, value in segment.items() if value is not None})
    save_preferences(path, [Preference("a", segment, segment, 1.0)])
    with pytest.raises(ValueError, match=message):
        make(preferences_path=str(path))


def test_preferences_of_other_dtypes_are_converted(tmp_path):
    path = tmp_path / "a.jsonl"
    drawn = [rows((6,), seed=seed) for seed in range(2)]
    pair = [Batch(obs=each.obs.astype(float), act=each.act.astype(np.int32)) for each in drawn]
    save_preferences(path, [Preference("a", *pair, 1.0)])
    model = make(preferences_path=str(path))
    model.collect_data(rollout((100, 2)))
    assert model.train()["comparisons"] == 31
    np.testing.assert_array_equal(model.pairs.rows["obs"][:6], drawn[0].obs)


def test_a_file_without_labels_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    save_preferences(path, [Preference("a", rows((2,)), rows((2,)), "skip")])
    with pytest.raises(ValueError, match="has no pair with a label"):
        make(preferences_path=str(path))
    with pytest.raises(FileNotFoundError, match="there are no preferences at"):
        make(preferences_path=str(tmp_path / "b.jsonl"))


# --- the interface


def test_estimates():
    check_estimate(taught()[0])


def test_broken_off_episodes_leave_a_short_segment_unless_it_is_too_short():
    model = make()
    model.collect_data(rollout((1, 2), first=[0]))
    model.collect_data(rollout((7, 2), first=[0]))  # one row is less than a quarter
    assert model.memory.rows().length.tolist() == [5, 5]
    model.collect_data(rollout((5, 2), first=[0]))
    assert model.memory.rows().length.tolist() == [5, 5, 2, 2, 5, 5]


def test_a_restored_model_continues_exactly():
    model = make()
    restored = make()
    model.collect_data(rollout((52, 2)))
    model.train()
    model.collect_data(rollout((20, 2), seed=1))
    restored.load_training_state(copy.deepcopy(model.training_state()))
    for each in (model, restored):
        each.collect_data(rollout((40, 2), seed=2))
        assert each.train()["comparisons"] == 50
    assert same_states(model.training_state(), restored.training_state())
    data = rows((9,))
    np.testing.assert_array_equal(model.estimate(data).rew, restored.estimate(data).rew)


def test_another_run_keeps_the_answers_and_asks_its_own_queries():
    model, _ = taught(1)
    model.collect_data(rollout((2, 2), seed=1))
    other = make()
    other.load_training_state(copy.deepcopy(model.portable_state()))
    assert (other.asked, other.round, len(other.pairs), len(other.memory)) == (0, 0, 30, 0)
    data = rows((9,))
    np.testing.assert_array_equal(model.estimate(data).rew, other.estimate(data).rew)
    assert other.pretrain() is None
    other.collect_data(rollout((100, 2), seed=5))
    assert other.memory.rows().length.tolist() == [5] * 40  # without open segments of the other
    assert other.train()["comparisons"] == 60


def test_a_model_without_data_can_be_saved():
    model = make()
    state = copy.deepcopy(model.training_state())
    model.load_training_state(state)
    assert same_states(model.training_state(), state)


# --- unsupervised pretraining


def test_at_first_the_reward_is_the_novelty_of_observations():
    model, data = make(unsupervised_steps=200), rollout((100, 2))
    assert (model.estimate(data).rew == 0).all()  # there is nothing to compare with
    model.collect_data(data[:90])
    assert model.explores
    assert model.train() is None
    assert model.asked == 0
    with torch.no_grad():
        known = model.states(Batch(obs=torch.as_tensor(data.obs[:90]).flatten(0, 1))).numpy()
    distances = np.sort(np.linalg.norm(known[:, None] - known[None], axis=-1), axis=1)
    expected = np.log1p(distances[:, 4]).reshape(90, 2)  # the first is the row itself
    np.testing.assert_allclose(model.estimate(data[:90]).rew, expected, rtol=1e-2, atol=1e-2)
    far = data.replace(obs=data.obs + 100)
    assert (model.estimate(far).rew.min() > expected.max()).all()

    other = make(unsupervised_steps=200)
    other.load_training_state(copy.deepcopy(model.training_state()))
    for each in (model, other):
        each.collect_data(rollout((100, 2), seed=1))
        assert not each.explores
        assert each.train() is not None
        assert each.asked > 0
    learned = model.estimate(data).rew
    np.testing.assert_array_equal(other.estimate(data).rew, learned)
    new = make(unsupervised_steps=200)
    new.load_training_state(model.portable_state())
    np.testing.assert_array_equal(new.estimate(data).rew, learned)


def test_the_novelty_of_observations_is_not_compared_with_fitted_rewards(tmp_path):
    """Preferences of a file are fitted before the policy acts, novelty is paid first."""
    model = make(**saved(tmp_path / "a.jsonl", unsupervised_steps=200))
    reward = make_reward(model)
    assert reward.pretrain()
    assert model.reference.floor is None  # unknown while rewards are novelty
    data = rollout((100, 2))
    reward.collect_data(data[:90])
    assert not reward.train()
    assert model.reference.floor is None
    reward.collect_data(data[90:])
    assert not model.explores
    reward.train()
    fitted = model.estimate(model.fitted_rows().replace(rew=torch.zeros(len(model.fitted_rows()))))
    assert_close(model.reference.rewards, np.sort(fitted.rew))


def test_a_frozen_model_does_not_explore(tmp_path):
    options = {**QUICK, **saved(tmp_path / "a.jsonl"), "unsupervised_steps": 200}
    frozen = dataclasses.replace(setting(), frozen=True)
    model = create_reward_model({"type": "preference", **options}, frozen)
    model.pretrain()
    assert correlation(model) > 0.8


def test_a_run_pretrains_before_it_explores(tmp_path):
    observations = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    drawn = [rows((6,), observation_space=observations, seed=seed) for seed in range(20)]
    preferences = [
        Preference(str(i), one, other, label=float(one.rew.sum() < other.rew.sum()))
        for i, (one, other) in enumerate(zip(drawn[::2], drawn[1::2], strict=True))
    ]
    save_preferences(tmp_path / "a.jsonl", preferences)
    options = {**QUICK, "preferences_path": str(tmp_path / "a.jsonl"), "unsupervised_steps": 100}
    reward = {"terms": {"preference": options}, "pretrain": True}
    assert run("ppo_normalized", tmp_path / "run", reward=reward)["stop_reason"] == "max_steps"
