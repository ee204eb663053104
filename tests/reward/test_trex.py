import copy

import numpy as np
import pytest

from guerdon.data import save_demonstrations
from guerdon.reward import create_reward_model
from guerdon.reward.items import from_batch
from guerdon.reward.trex import check_noise, choose_held_out, draw_ranked, draw_snippets
from tests.reward.ranked import ARM, IMAGE, TWO, VECTOR, demonstrations, rows, same_states, setting

QUICK = {
    "update_per_collect": 60,
    "batch_size": 32,
    "hidden_size": [16],
    "learning_rate": 0.01,
    "num_snippets": 400,
    "min_snippet_length": 5,
    "max_snippet_length": 10,
}


def make(name="trex", data=None, space=VECTOR, action_space=TWO, **options):
    model = create_reward_model({"type": name, **QUICK, **options})
    model.setup(setting(space, action_space))
    model.load_expert_data(demonstrations() if data is None else data)
    return model


def generator(seed=0):
    return np.random.default_rng(seed)


# --- what is compared


def test_each_pair_of_different_rank_is_as_likely_as_any():
    worse, better = draw_ranked(np.array([5.0, 1.0, 5.0, 3.0]), 50_000, generator())
    found, counts = np.unique(np.stack([worse, better]), axis=1, return_counts=True)
    assert found.T.tolist() == [[1, 0], [1, 2], [1, 3], [3, 0], [3, 2]]
    np.testing.assert_allclose(counts / 50_000, 0.2, atol=0.01)


def test_snippets_are_as_long_as_asked_and_lie_inside():
    shorter = np.full(20_000, 30)
    length, worse, better = draw_snippets(shorter, 5, 8, False, generator())
    assert np.unique(length).tolist() == [5, 6, 7, 8]
    for start in (worse, better):
        assert start.min() == 0
        assert (start + length).max() == 30


def test_snippets_are_never_longer_than_the_shorter_demonstration():
    length, worse, better = draw_snippets(np.array([3] * 50), 5, 8, False, generator())
    assert (length == 3).all()
    assert (worse == 0).all()
    assert (better == 0).all()


def test_when_a_snippet_starts_says_nothing_about_its_rank():
    shorter = np.tile([30, 60], 20_000)
    _, worse, better = draw_snippets(shorter, 5, 8, False, generator())
    assert abs(np.corrcoef(worse[::2], better[::2])[0, 1]) < 0.03
    assert worse.mean() == pytest.approx(better.mean(), abs=0.3)


def test_with_the_progress_prior_the_better_one_starts_no_earlier():
    shorter = np.full(20_000, 30)
    length, worse, better = draw_snippets(shorter, 5, 8, True, generator())
    assert (better >= worse).all()
    assert (better > worse).any()
    assert (better + length).max() == 30


def test_better_demonstrations_that_are_longer_do_not_make_late_rows_good():
    # Three demonstrations of 10, 20 and 40 rows: of the longer ones, what starts late is left out.
    model = make(data=demonstrations((0, 1, 2), [10, 20, 40]), num_snippets=2000)
    pairs = model.pairs
    begins = np.array([0, 10, 30])
    starts = [begins.searchsorted(each, "right") - 1 for each in (pairs.first, pairs.second)]
    within = [
        each - begins[number]
        for each, number in zip((pairs.first, pairs.second), starts, strict=True)
    ]
    of_lowest = (starts[0] == 0) | (starts[1] == 0)
    assert all((each + pairs.length)[of_lowest].max() <= 10 for each in within)
    assert all((each + pairs.length).max() <= 20 for each in within)


def test_labels_say_which_snippet_is_of_the_better_demonstration():
    model = make(validation_share=0.0)
    pairs = model.pairs
    quality = np.stack([pairs.first // 40, pairs.second // 40])
    assert ((quality[1] > quality[0]) == pairs.label).all()
    assert 0.4 < pairs.label.mean() < 0.6
    assert (quality[0] != quality[1]).all()


def test_held_out_demonstrations_are_no_part_of_what_is_fitted():
    model = make()
    fitted, held_out = (
        set(np.concatenate([pairs.first // 40, pairs.second // 40]))
        for pairs in (model.pairs, model.held_out)
    )
    assert len(held_out) == 2
    assert not fitted & held_out
    assert len(fitted | held_out) == 10


def test_held_out_ones_are_spread_over_the_ranks():
    ranks = np.arange(20.0)[::-1]
    held_out = choose_held_out(ranks, 0.2, generator())
    assert sorted(ranks[held_out] // 5) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("ranks", "share"),
    [([1, 2, 3], 0.2), ([1, 2], 0.5), ([1, 1, 1, 2], 0.25), ([0, 1, 2, 3, 4], 0.0)],
)
def test_none_are_held_out_where_too_little_would_be_left(ranks, share):
    assert not choose_held_out(np.array(ranks, float), share, generator()).any()


@pytest.mark.parametrize("number", [4, 6, 7])
def test_of_a_few_two_are_held_out(number):
    assert choose_held_out(np.arange(float(number)), 0.1, generator()).sum() == 2


# --- what ranks


def test_demonstrations_are_ranked_by_their_returns_or_order_or_numbers():
    data = demonstrations((2, 0, 1))
    assert make(data=data).ranks(data).argsort().tolist() == [1, 2, 0]
    assert make(data=data, rank_by="order").ranks(data).tolist() == [0, 1, 2]
    assert make(data=data, rank_by=[3, 1, 2]).ranks(data).tolist() == [3, 1, 2]


def test_a_list_of_ranks_has_to_have_a_number_for_each():
    with pytest.raises(ValueError, match="'rank_by' has 2 numbers for 10 demonstrations"):
        make(rank_by=[1, 2])


def test_demonstrations_of_one_rank_are_refused():
    with pytest.raises(ValueError, match="all 10 demonstrations have the same rank: trex needs"):
        make(rank_by=[1] * 10)


def test_snippets_that_are_shorter_than_they_must_be_are_refused():
    with pytest.raises(ValueError, match="min_snippet_length 9 is more than max_snippet_length 5"):
        make(min_snippet_length=9, max_snippet_length=5)


# --- learning


def test_it_learns_what_makes_demonstrations_better():
    model = make()
    metrics = model.pretrain()
    assert metrics["validation_accuracy"] > 0.8
    data = rows((500,), seed=99)
    assert np.corrcoef(model.estimate(data).rew, data.rew)[0, 1] > 0.9


def test_it_goes_on_beyond_the_best_demonstration():
    model = make()
    model.pretrain()
    best, beyond = (model.estimate(rows((200,), quality, seed=5)).rew.mean() for quality in (3, 4))
    assert beyond > best


def test_wrong_ranks_are_learned_just_as_well():
    model = make(rank_by=[9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    model.pretrain()
    data = rows((500,), seed=99)
    assert np.corrcoef(model.estimate(data).rew, data.rew)[0, 1] < -0.9


def test_true_rewards_are_not_read_where_ranks_are_given():
    data = demonstrations()
    silent = copy.deepcopy(data)
    for episode in silent.episodes:
        episode.rew[:] = 0.0
    told, untold = (make(data=each, rank_by="order") for each in (data, silent))
    told.pretrain()
    untold.pretrain()
    assert same_states(told.state_dict(), untold.state_dict())


def test_rewards_have_mean_0_and_spread_1_over_the_demonstrations():
    model = make()
    model.pretrain()
    rew = model.estimate(demonstrations().transitions()).rew
    assert rew.mean() == pytest.approx(0, abs=1e-4)
    assert rew.std() == pytest.approx(1, abs=1e-4)


def test_it_is_fitted_once():
    pretrained, trained = make(), make()
    assert pretrained.pretrain() == trained.train()
    assert trained.train() is None
    assert pretrained.train() is None
    assert same_states(pretrained.state_dict(), trained.state_dict())


def test_the_demonstrations_of_the_config_are_loaded_where_nobody_else_did(tmp_path):
    save_demonstrations(demonstrations(), tmp_path)
    model = create_reward_model({"type": "trex", "expert_data_path": str(tmp_path), **QUICK})
    assert model.train()["steps"] == 60
    assert len(model.demonstrations) == 10
    assert model.estimate(rows((4,))).rew.shape == (4,)


def test_it_needs_demonstrations_before_it_is_fitted():
    model = create_reward_model({"type": "trex"})
    model.setup(setting())
    with pytest.raises(ValueError, match="trex learns from demonstrations: name them in 'expert_"):
        model.train()


@pytest.mark.parametrize("inputs", [["obs"], ["obs", "act"], ["act", "obs_next"]], ids=str)
@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_it_takes_any_spaces(space, action_space, inputs):
    data = demonstrations((0, 1, 2), [6, 6, 6], observation_space=space, action_space=action_space)
    model = make(
        data=data,
        space=space,
        action_space=action_space,
        inputs=inputs,
        update_per_collect=2,
        batch_size=4,
        num_snippets=8,
    )
    assert model.fields == tuple(inputs)
    model.train()
    assert np.isfinite(model.estimate(data.transitions()).rew).all()


# --- the contract


def test_an_estimate_is_pure():
    model = make()
    model.pretrain()
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


def test_lists_come_back_as_lists():
    model = make()
    data = rows((5,))
    found = model.estimate(from_batch(data))
    assert isinstance(found, list)
    np.testing.assert_allclose(
        [float(item["reward"]) for item in found], model.estimate(data).rew, rtol=1e-5, atol=1e-6
    )


def test_what_the_policy_does_is_not_remembered():
    model = make()
    state = copy.deepcopy(model.state_dict())
    model.collect_data(rows((3, 2)).replace(mask=np.ones((3, 2), bool)))
    model.clear_data(1)
    assert same_states(model.state_dict(), state)


@pytest.mark.parametrize("fitted", [False, True])
def test_a_restored_model_goes_on_exactly(fitted):
    model, restored = make(), make(data=demonstrations())
    if fitted:
        model.train()
    restored.load_state_dict(copy.deepcopy(model.state_dict()))
    assert (restored.train() is None) == fitted
    model.train()
    assert same_states(model.state_dict(), restored.state_dict())
    data = rows((9,))
    np.testing.assert_array_equal(model.estimate(data).rew, restored.estimate(data).rew)


# --- drex

LEVELS = [1.0, 1.0, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25, 0.0, 0.0]


def test_less_noise_is_better():
    data = demonstrations(noise=LEVELS)
    model = make("drex", data)
    assert model.ranks(data).tolist() == [-level for level in LEVELS]
    model.pretrain()
    fresh = rows((500,), seed=99)
    assert np.corrcoef(model.estimate(fresh).rew, fresh.rew)[0, 1] > 0.9


def test_noise_can_be_given_in_the_config():
    data = demonstrations()
    assert make("drex", data, noise_levels=LEVELS).ranks(data).tolist() == [-x for x in LEVELS]
    with pytest.raises(ValueError, match="'noise_levels' has 1 numbers for 10 demonstrations"):
        make("drex", data, noise_levels=[1])


def test_demonstrations_that_do_not_say_how_noisy_they_are_are_refused():
    with pytest.raises(ValueError, match="collect them with 'guerdon collect --noise'"):
        make("drex")


def test_noise_may_not_change_within_an_episode():
    data = demonstrations(noise=LEVELS)
    data.episodes[3].noise[5] = 0.1
    with pytest.raises(ValueError, match="'noise' changes within demonstration 3"):
        make("drex", data)


def test_noise_that_does_no_harm_is_refused_before_anything_is_fitted():
    with pytest.raises(ValueError, match="noise does not rank these demonstrations: their mean"):
        make("drex", demonstrations(noise=LEVELS[::-1]))


@pytest.mark.parametrize(
    ("returns", "fine"),
    [
        ([9, 9.2, 5, 5.2, 1, 1.2], True),
        ([5, 5.2, 9, 9.2, 1, 1.2], False),  # rises between
        ([9, 9.2, 1, 1.2, 5, 5.2], False),
        ([1, 1.2, 5, 5.2, 9, 9.2], False),
        ([9, 9.2, 5, 5.2, 5, 5.4], True),  # a rise within the error
        ([2, 9, 2, 8, 1, 8], False),  # a fall within the error
        ([0, 0, 0, 0, 0, 0], True),  # nobody was paid: nothing is known
    ],
)
def test_mean_returns_have_to_fall_with_noise(returns, fine):
    noise, returns = np.array([0, 0, 0.5, 0.5, 1, 1]), np.array(returns, float)
    if fine:
        check_noise(noise, returns)
    else:
        with pytest.raises(ValueError, match=r"with 0\.5, .* with 1; collect with other levels"):
            check_noise(noise, returns)


def test_of_a_single_episode_nobody_knows_how_far_it_is_off():
    noise = np.array([0, 0.1, 0.2, 0.5, 1])
    check_noise(noise, np.array([100.0, 90, 92, 50, 10]))
    with pytest.raises(ValueError, match="noise does not rank these demonstrations"):
        check_noise(noise, np.array([10.0, 50, 92, 90, 100]))


def test_noise_that_cannot_be_seen_is_refused_after_the_fit():
    generator = np.random.default_rng(0)
    data = demonstrations([0] * 20, noise=generator.permutation([0.0, 1.0] * 10))
    for episode in data.episodes:
        episode.rew[:] = 0.0
    model = make("drex", data)
    with pytest.raises(ValueError, match=r"noise does not rank .* 'min_accuracy' asks for 60%"):
        model.train()


def test_drex_has_no_other_ranks():
    with pytest.raises(ValueError, match=r"unknown key 'reward\.rank_by'"):
        make("drex", rank_by="order")
