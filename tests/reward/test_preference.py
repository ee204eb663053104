import copy

import numpy as np
import pytest

from guerdon.data import Batch, Preference, load_preferences, save_preferences
from guerdon.reward import create_reward_model
from guerdon.reward.items import from_batch
from guerdon.reward.preference import query_schedule
from tests.reward.ranked import ARM, IMAGE, TWO, VECTOR, rollout, rows, same_states, setting

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
    model = create_reward_model({"type": "preference", **QUICK, **options})
    model.setup(setting(space, action_space))
    return model


def taught(rounds=3, **options):
    model = make(**options)
    for number in range(rounds):
        model.collect_data(rollout((100, 2), seed=number))
        metrics = model.train()
    return model, metrics


def agreement(model):
    data = rows((500,), seed=99)
    return np.corrcoef(model.estimate(data).rew, data.rew)[0, 1]


# --- how many questions, and when


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
def test_a_schedule_has_as_many_questions_as_were_asked_for(schedule):
    for number in (7, 100, 201):
        found = query_schedule(number, 0.15, 13, schedule)
        assert sum(found) == number
        assert min(found) >= 0


def test_questions_come_in_rounds_and_end():
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


# --- what is asked


def test_segments_come_from_one_row_at_a_time_just_as_well():
    whole, single = make(), make()
    data = rollout((100, 2))
    whole.collect_data(data)
    for time in range(100):
        row = data[time : time + 1]
        single.collect_data(row.replace(cut=np.ones((1, 2), bool)))
    assert same_states(whole.memory.state_dict(), single.memory.state_dict())
    whole.train()
    single.train()
    assert same_states(whole.state_dict(), single.state_dict())


def test_the_teacher_is_told_true_returns():
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
    data = rollout((100, 2))
    data.terminated[7::10] = True
    model.collect_data(data)
    model.train()
    # Episodes of 8, then 10 rows: 5 + 3, 5 + 5, ...
    assert set(model.comparisons.length.tolist()) == {3, 5}


def test_first_questions_are_about_any_pairs_and_later_ones_about_those_in_doubt():
    model, _ = taught(1, validation_share=0.0)
    held = np.arange(len(model.memory))
    chosen = model._disagreement(*model._choose(20))
    usual = model._disagreement(
        model.generator.choice(held, 300), model.generator.choice(held, 300)
    )
    assert chosen.min() > np.quantile(usual, 0.75)
    uniform, _ = taught(1, queries="uniform", validation_share=0.0)
    chosen = uniform._disagreement(*uniform._choose(200))
    assert chosen.mean() == pytest.approx(usual.mean(), rel=0.5)


def test_a_round_may_be_held_out_as_a_whole():
    model, _ = taught(1)
    model.comparisons.still_to_hold_out = lambda number, _: number
    first, second = model._choose(2)
    held_out = model.memory.rows().held_out
    assert held_out[first].all()
    assert held_out[second].all()


def test_a_segment_is_never_compared_with_itself():
    model = make()
    model.collect_data(rollout((10, 1)))  # two segments
    first, second = model._choose(50)
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == {(0, 1), (1, 0)}


def test_a_teacher_who_skips_teaches_less():
    model, metrics = taught(1, teacher={"type": "skipping", "skip": 0.7})
    assert metrics["skipped"] > 0
    assert metrics["comparisons"] == 30 - metrics["skipped"]
    assert model.asked == 30


def test_a_teacher_who_never_answers_teaches_nothing():
    model, metrics = taught(3, teacher={"type": "skipping", "skip": 1.0})
    assert metrics is None or metrics["comparisons"] < 5
    assert model.round == 3


def test_old_segments_are_forgotten_but_not_what_was_learned_from_them():
    model, _ = taught(3, buffer_size=50)
    assert len(model.memory) == 10
    assert len(model.comparisons) == 60
    model.clear_data(1)
    assert len(model.memory) == 10
    forgetful = make(clear_buffer_per_iters=2)
    forgetful.collect_data(rollout((50, 2)))
    forgetful.train()
    forgetful.clear_data(3)
    assert len(forgetful.memory) == 20
    forgetful.clear_data(4)
    assert len(forgetful.memory) == 0
    forgetful.collect_data(rollout((10, 2)))
    forgetful.clear_data(6)
    assert len(forgetful.memory) == 4  # nobody was asked about them yet


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
    assert agreement(model) > 0.85


def test_held_out_comparisons_are_measured():
    _, metrics = taught(validation_share=0.3)
    assert metrics["validation_accuracy"] > 0.7
    assert metrics["validation_loss"] < np.log(2)


def segments_of(pairs):
    """The first rows of all segments, which no other segment begins with."""
    starts = np.concatenate([pairs.first, pairs.second])
    return {tuple(row) for row in pairs.rows["obs"][starts].tolist()}


@pytest.mark.parametrize("queries", ["uniform", "disagreement"])
def test_held_out_comparisons_share_no_segment_with_the_others(queries):
    model, _ = taught(validation_share=0.3, queries=queries)
    assert len(model.held_out) == 18  # of 60
    assert len(segments_of(model.pairs)) > 20
    assert not segments_of(model.pairs) & segments_of(model.held_out)


def test_judgements_of_a_file_are_split_by_segments_too(tmp_path):
    drawn = [rows((6,), seed=number) for number in range(6)]
    data = [Batch(obs=each.obs, act=each.act) for each in drawn]
    pairs = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5)]
    path = tmp_path / "a.jsonl"
    save_preferences(path, [Preference(f"{a}-{b}", data[a], data[b], 1.0) for a, b in pairs])
    model = make(preferences_path=str(path), comparisons=0, validation_share=0.4)
    assert model.comparisons.held_out.tolist() == [False, False, False, True, True]


def test_a_few_segments_are_compared_even_if_all_were_set_aside():
    model = make(validation_share=0.99, train_every=10)
    model.collect_data(rollout((10, 1)))
    assert model.train()["comparisons"] == 30
    assert model.held_out is None


def test_what_is_held_out_alone_is_not_learned_from():
    model = make(validation_share=0.5)
    pair = Batch(obs=rows((5,)).obs, act=rows((5,)).act)
    model._add([(pair, pair)], np.ones(1), np.ones(1, bool))
    assert model._learn() is None
    model._add([(pair, pair)], np.ones(1), np.zeros(1, bool))
    assert model._learn()["comparisons"] == 2


def test_rewards_of_what_was_compared_have_mean_0_and_spread_1():
    model, _ = taught()
    rows_seen = model.pairs.rows
    rew = model.network(rows_seen)
    assert rew.mean().item() == pytest.approx(0, abs=1e-4)
    assert rew.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_bounded_rewards_lie_between_minus_1_and_1():
    model, _ = taught(output="tanh")
    rew = model.estimate(rows((100,), 50.0)).rew
    assert np.abs(rew).max() <= 1


@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_it_takes_any_spaces(space, action_space):
    model = make(
        space,
        action_space,
        inputs=["obs", "act", "obs_next"],
        update_per_collect=2,
        comparisons=8,
        batch_size=4,
    )
    data = rollout((60, 2), observation_space=space, action_space=action_space)
    model.collect_data(data)
    assert model.train()["comparisons"] == 4
    assert np.isfinite(model.estimate(data).rew).all()


# --- judgements in files


def judgements(path, number=40, **options):
    """A file in which the segment with larger first numbers is better."""
    pairs = [(rows((6,), seed=2 * i), rows((6,), seed=2 * i + 1)) for i in range(number)]
    save_preferences(
        path,
        [
            Preference(
                str(i),
                Batch(obs=first.obs, act=first.act),
                Batch(obs=second.obs, act=second.act),
                float(second.rew.sum() > first.rew.sum()),
                "anna",
            )
            for i, (first, second) in enumerate(pairs)
        ],
    )
    return {"preferences_path": str(path), **options}


def test_it_learns_from_a_file_alone(tmp_path):
    model = make(**judgements(tmp_path / "a.jsonl", comparisons=0))
    metrics = model.pretrain()
    assert metrics["comparisons"] == 40
    assert agreement(model) > 0.8
    model.collect_data(rollout((100, 2)))
    assert model.train() is None
    assert model.asked == 0


def test_judgements_of_a_file_are_learned_with_the_first_round_otherwise(tmp_path):
    model = make(**judgements(tmp_path / "a.jsonl"))
    model.collect_data(rollout((100, 2)))
    assert model.train()["comparisons"] == 70


def test_without_a_file_there_is_nothing_to_pretrain(tmp_path):
    assert make().pretrain() is None
    assert not make().pretrains
    assert make(**judgements(tmp_path / "a.jsonl")).pretrains


def test_questions_and_answers_are_recorded(tmp_path):
    path = tmp_path / "record.jsonl"
    model, _ = taught(record_path=str(path), teacher={"type": "skipping", "skip": 0.5})
    found = load_preferences(path)
    assert len(found) == model.asked == 60
    assert {each.rater for each in found} == {"synthetic skipping"}
    answers = [each.label for each in found if each.label != "skip"]
    assert answers == model.comparisons.label.tolist()
    assert len(answers) < 60
    again = make(preferences_path=str(path), comparisons=0)
    assert len(again.comparisons) == len(answers)
    assert "rew" not in found[0].first


def test_what_was_recorded_is_never_written_over(tmp_path):
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
def test_judgements_of_other_things_are_refused(tmp_path, change, message):
    path = tmp_path / "a.jsonl"
    segment = {"obs": np.zeros((6, 2), np.float32), "act": np.zeros(6, int), **change}
    segment = Batch({name: value for name, value in segment.items() if value is not None})
    save_preferences(path, [Preference("a", segment, segment, 1.0)])
    with pytest.raises(ValueError, match=message):
        make(preferences_path=str(path))


def test_a_file_without_judgements_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    save_preferences(path, [Preference("a", rows((2,)), rows((2,)), "skip")])
    with pytest.raises(ValueError, match="has no pair that somebody could judge"):
        make(preferences_path=str(path))
    with pytest.raises(FileNotFoundError, match="there are no preferences at"):
        make(preferences_path=str(tmp_path / "b.jsonl"))


# --- the contract


def test_an_estimate_is_pure():
    model, _ = taught()
    data = rows((4, 3), seed=7)
    before, state = copy.deepcopy(data), copy.deepcopy(model.state_dict())
    rew = model.estimate(data).rew
    assert rew.shape == (4, 3)
    np.testing.assert_array_equal(model.estimate(data).rew, rew)
    np.testing.assert_allclose(model.estimate(data[1:3]).rew, rew[1:3], rtol=1e-4, atol=1e-5)
    order = np.array([2, 0, 3, 1])
    np.testing.assert_allclose(model.estimate(data[order]).rew, rew[order], rtol=1e-4, atol=1e-5)
    assert same_states(model.state_dict(), state)
    for name in before.keys():  # noqa: SIM118 - a Batch iterates over rows
        np.testing.assert_array_equal(data[name], before[name])


def test_an_estimate_does_not_read_the_true_reward():
    model, _ = taught()
    data = rows((9,))
    other = model.estimate(data.replace(rew=data.rew + 5)).rew
    np.testing.assert_array_equal(model.estimate(data).rew, other)


def test_lists_are_taken_and_come_back_as_lists():
    model = make()
    data = rows((100,))
    data.terminated[49] = True
    model.collect_data(from_batch(data))
    assert len(model.memory) == 20
    assert model.train()["comparisons"] == 30
    found = model.estimate(from_batch(data[:5]))
    np.testing.assert_allclose(
        [float(item["reward"]) for item in found],
        model.estimate(data[:5]).rew,
        rtol=1e-5,
        atol=1e-6,
    )


def test_broken_off_episodes_leave_a_short_segment_unless_it_is_too_short():
    model = make()
    model.collect_data(rollout((1, 2)))
    model.break_off()  # one row is less than a quarter
    assert len(model.memory) == 0
    model.collect_data(rollout((7, 2)))
    model.break_off()
    assert model.memory.rows().length.tolist() == [5, 5, 2, 2]
    model.collect_data(rollout((5, 2)))
    assert model.memory.rows().length.tolist() == [5, 5, 2, 2, 5, 5]


def test_a_restored_model_goes_on_exactly():
    model = make()
    restored = make()
    model.collect_data(rollout((52, 2)))
    model.train()
    model.collect_data(rollout((20, 2), seed=1))
    restored.load_state_dict(copy.deepcopy(model.state_dict()))
    for each in (model, restored):
        each.collect_data(rollout((40, 2), seed=2))
        assert each.train()["comparisons"] == 50
    assert same_states(model.state_dict(), restored.state_dict())
    data = rows((9,))
    np.testing.assert_array_equal(model.estimate(data).rew, restored.estimate(data).rew)


def test_a_model_with_no_data_yet_can_be_saved():
    model = create_reward_model({"type": "preference"})
    model.load_state_dict(model.state_dict())
    assert model.state_dict() == {}
