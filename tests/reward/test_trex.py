import copy

import numpy as np
import pytest

from guerdon.data import save_demonstrations
from guerdon.reward import create_reward_model
from guerdon.reward.trex import TREXConfig, choose_held_out, draw_ranked, draw_snippets
from tests.reward.ranked import (
    ARM,
    IMAGE,
    TWO,
    VECTOR,
    check_estimate,
    correlation,
    demonstrations,
    rollout,
    rows,
    same_states,
    setting,
)

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
    model = create_reward_model({"type": name, **QUICK, **options}, setting(space, action_space))
    model.load_expert_data(demonstrations() if data is None else data)
    return model


def generator(seed=0):
    return np.random.default_rng(seed)


# --- pairs of snippets


def test_pairs_of_different_rank_are_drawn_uniformly():
    worse, better = draw_ranked(np.array([5.0, 1.0, 5.0, 3.0]), 50_000, generator())
    found, counts = np.unique(np.stack([worse, better]), axis=1, return_counts=True)
    assert found.T.tolist() == [[1, 0], [1, 2], [1, 3], [3, 0], [3, 2]]
    np.testing.assert_allclose(counts / 50_000, 0.2, atol=0.01)


def snippets(worse, better, number=20_000, **options):
    """Lengths and starts of pairs of snippets of two demonstrations of these lengths."""
    config = TREXConfig(min_snippet_length=5, max_snippet_length=8, **options)
    lengths = np.tile([[worse], [better]], number)
    length, starts = draw_snippets(lengths, config, generator())
    return length, *starts


@pytest.mark.parametrize("progress_prior", [False, True])
@pytest.mark.parametrize("lengths", [(30, 30), (30, 60), (60, 30)], ids=str)
def test_snippets_have_the_configured_length_and_lie_inside(lengths, progress_prior):
    length, *starts = snippets(*lengths, progress_prior=progress_prior)
    assert np.unique(length).tolist() == [5, 6, 7, 8]
    for start, rows_of in zip(starts, lengths, strict=True):
        assert start.min() == 0
        assert (start + length).max() <= rows_of


@pytest.mark.parametrize("progress_prior", [False, True])
def test_snippets_are_never_longer_than_the_shorter_demonstration(progress_prior):
    length, worse, better = snippets(3, 9, progress_prior=progress_prior)
    assert (length == 3).all()
    assert (worse == 0).all()
    assert np.unique(better).tolist() == [0, 1, 2, 3, 4, 5, 6]
    length, worse, better = snippets(9, 3, progress_prior=progress_prior)
    assert (length == 3).all()
    assert (better == 0).all()


@pytest.mark.parametrize("lengths", [(30, 30), (10, 40), (40, 10)], ids=str)
def test_snippets_start_uniformly_within_their_own_demonstration(lengths):
    length, *starts = snippets(*lengths, 60_000)
    for start, rows_of in zip(starts, lengths, strict=True):
        for fixed in (5, 8):
            counts = np.bincount(start[length == fixed])
            assert len(counts) == rows_of - fixed + 1
            np.testing.assert_allclose(counts / counts.mean(), 1, atol=0.25)
    assert abs(np.corrcoef(*starts)[0, 1]) < 0.03


@pytest.mark.parametrize("lengths", [(30, 30), (10, 40), (40, 10)], ids=str)
def test_with_the_progress_prior_the_better_snippet_starts_no_earlier(lengths):
    length, worse, better = snippets(*lengths, progress_prior=True)
    assert (better >= worse).all()
    assert (better > worse).any()
    assert (better + length).max() == lengths[1]


def test_snippets_of_longer_demonstrations_reach_their_ends():
    pairs = make(data=demonstrations((0, 1, 2), [10, 20, 40]), num_snippets=2000).pairs
    begins, ends = np.array([0, 10, 30]), np.array([10, 30, 70])
    last = []
    for start in (pairs.first, pairs.second):
        number = begins.searchsorted(start, "right") - 1
        assert (start + pairs.length <= ends[number]).all()
        last.append([(start + pairs.length)[number == each].max() for each in range(3)])
    assert np.max(last, 0).tolist() == ends.tolist()


def test_labels_say_which_snippet_is_of_the_better_demonstration():
    pairs = make(validation_share=0.0).pairs
    quality = np.stack([pairs.first // 40, pairs.second // 40])
    assert ((quality[1] > quality[0]) == pairs.label).all()
    assert 0.4 < pairs.label.mean() < 0.6
    assert (quality[0] != quality[1]).all()


def test_held_out_demonstrations_are_not_fitted():
    pairs = make().pairs
    episodes = np.stack([pairs.first, pairs.second]) // 40
    fitted, held_out = (set(episodes[:, pairs.held_out == each].ravel()) for each in (False, True))
    assert len(held_out) == 2
    assert not fitted & held_out
    assert len(fitted | held_out) == 10
    assert pairs.held_out.sum() == 20
    assert len(pairs) == 420


def test_held_out_demonstrations_are_spread_over_the_ranks():
    ranks = np.arange(20.0)[::-1]
    held_out = choose_held_out(ranks, 0.2, generator())
    assert sorted(ranks[held_out] // 5) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("ranks", "share"),
    [([1, 2, 3], 0.2), ([1, 2], 0.5), ([1, 1, 1, 2], 0.25), ([0, 1, 2, 3, 4], 0.0)],
)
def test_none_are_held_out_if_too_few_would_be_left(ranks, share):
    assert not choose_held_out(np.array(ranks, float), share, generator()).any()


@pytest.mark.parametrize("number", [4, 6, 7])
def test_of_a_few_demonstrations_two_are_held_out(number):
    assert choose_held_out(np.arange(float(number)), 0.1, generator()).sum() == 2


# --- ranks


def test_demonstrations_are_ranked_by_returns_order_or_numbers():
    data = demonstrations((2, 0, 1))
    assert make(data=data).ranks(data).argsort().tolist() == [1, 2, 0]
    assert make(data=data, rank_by="order").ranks(data).tolist() == [0, 1, 2]
    assert make(data=data, rank_by=[3, 1, 2]).ranks(data).tolist() == [3, 1, 2]


def test_a_list_of_ranks_needs_a_number_for_each():
    with pytest.raises(ValueError, match="'rank_by' has 2 numbers for 10 demonstrations"):
        make(rank_by=[1, 2])


def test_demonstrations_of_one_rank_are_refused():
    with pytest.raises(ValueError, match="all 10 demonstrations have the same rank: trex needs"):
        make(rank_by=[1] * 10)


def test_a_minimum_length_above_the_maximum_is_refused():
    with pytest.raises(ValueError, match="min_snippet_length 9 is more than max_snippet_length 5"):
        make(min_snippet_length=9, max_snippet_length=5)


# --- learning


def test_it_learns_what_makes_demonstrations_better():
    model = make()
    assert model.pretrain()["validation_accuracy"] > 0.8
    assert correlation(model) > 0.9


def test_it_extrapolates_beyond_the_best_demonstration():
    model = make()
    model.pretrain()
    best, beyond = (model.estimate(rows((200,), quality, seed=5)).rew.mean() for quality in (3, 4))
    assert beyond > best


def test_wrong_ranks_are_learned_as_well():
    model = make(rank_by=[9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    model.pretrain()
    assert correlation(model) < -0.9


LEVELS = [1.0, 1.0, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25, 0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "options"), [("trex", {"rank_by": "order"}), ("drex", {"noise_levels": LEVELS})]
)
def test_true_rewards_are_not_read_unless_they_rank(name, options):
    data = demonstrations()
    without = copy.deepcopy(data)
    for episode in without.episodes:
        episode.rew[:] = generator().normal(size=len(episode.rew))
    models = [make(name, each, **options) for each in (data, without)]
    for model in models:
        model.pretrain()
    assert same_states(*(model.training_state() for model in models))


def test_rewards_have_mean_0_and_standard_deviation_1_over_the_demonstrations():
    model = make()
    model.pretrain()
    rew = model.estimate(demonstrations().transitions()).rew
    assert rew.mean() == pytest.approx(0, abs=1e-4)
    assert rew.std() == pytest.approx(1, abs=1e-4)


def test_it_is_fitted_once():
    pretrained, trained = make(), make()
    assert not trained.fitted
    assert pretrained.pretrain() == trained.train()
    assert trained.fitted
    assert trained.train() is None
    assert pretrained.train() is None
    assert same_states(pretrained.training_state(), trained.training_state())


def test_the_demonstrations_of_the_config_are_loaded_if_necessary(tmp_path):
    save_demonstrations(demonstrations(), tmp_path)
    config = {"type": "trex", "expert_data_path": str(tmp_path), **QUICK}
    model, other = create_reward_model(config, setting()), make()
    assert model.train() == other.train()
    assert same_states(model.training_state(), other.training_state())


def test_it_needs_demonstrations():
    model = create_reward_model({"type": "trex"}, setting())
    assert model.requires == {"demonstrations"}
    with pytest.raises(ValueError, match="trex learns from demonstrations: set 'expert_"):
        model.train()


@pytest.mark.parametrize("inputs", [["obs"], ["obs", "act"], ["act", "obs_next"]], ids=str)
@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_it_takes_any_spaces(space, action_space, inputs):
    data = demonstrations((0, 1, 2), [6, 6, 6], observation_space=space, action_space=action_space)
    options = {"update_per_collect": 2, "batch_size": 4, "num_snippets": 8}
    model = make(data=data, space=space, action_space=action_space, inputs=inputs, **options)
    assert model.fields == tuple(inputs)
    model.train()
    assert np.isfinite(model.estimate(data.transitions()).rew).all()


# --- the interface


def test_estimates():
    model = make()
    model.pretrain()
    check_estimate(model)


def test_it_collects_nothing():
    model = make()
    assert model.collects == ()
    state = copy.deepcopy(model.training_state())
    model.collect_data(rollout((3, 2)))
    model.clear_data(1)
    assert same_states(model.training_state(), state)


@pytest.mark.parametrize("fitted", [False, True])
def test_a_restored_model_continues_exactly(fitted):
    model, restored = make(), make(data=demonstrations())
    if fitted:
        model.train()
    restored.load_training_state(copy.deepcopy(model.training_state()))
    assert (restored.train() is None) == fitted
    model.train()
    assert same_states(model.training_state(), restored.training_state())
    data = rows((9,))
    np.testing.assert_array_equal(model.estimate(data).rew, restored.estimate(data).rew)


# --- drex


def test_less_noise_is_better():
    data = demonstrations(noise=LEVELS)
    model = make("drex", data)
    assert model.ranks(data).tolist() == [-level for level in LEVELS]
    model.pretrain()
    assert correlation(model) > 0.9


def test_higher_returns_with_more_noise_are_not_refused():
    model = make("drex", demonstrations(noise=LEVELS[::-1]))
    model.pretrain()
    assert correlation(model) < -0.9


def test_noise_can_be_given_in_the_config():
    data = demonstrations()
    assert make("drex", data, noise_levels=LEVELS).ranks(data).tolist() == [-x for x in LEVELS]
    with pytest.raises(ValueError, match="'noise_levels' has 1 numbers for 10 demonstrations"):
        make("drex", data, noise_levels=[1])


def test_demonstrations_without_noise_levels_are_refused():
    with pytest.raises(ValueError, match="collect them with 'guerdon collect --noise'"):
        make("drex")


def test_noise_may_not_change_within_an_episode():
    data = demonstrations(noise=LEVELS)
    data.episodes[3].noise[5] = 0.1
    with pytest.raises(ValueError, match="'noise' changes within demonstration 3"):
        make("drex", data)


def test_noise_that_does_not_rank_held_out_pairs_is_refused():
    data = demonstrations([0] * 20, noise=generator().permutation([0.0, 1.0] * 10))
    model = make("drex", data)
    with pytest.raises(ValueError, match=r"noise does not rank .* 'min_accuracy' requires 60%"):
        model.train()


def test_drex_has_no_other_ranks():
    with pytest.raises(ValueError, match=r"unknown key 'reward\.rank_by'"):
        make("drex", rank_by="order")


@pytest.mark.parametrize("name", ["trex", "drex"])
def test_single_transitions_are_refused(name):
    with pytest.raises(ValueError, match="trex and drex compare parts of whole episodes"):
        create_reward_model({"type": name, "subsample": 2}, None)
