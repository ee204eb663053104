import numpy as np
import pytest
import torch

from guerdon.reward import make_reward
from guerdon.reward.ngu import NGUConfig, episodic_novelty
from tests.policy.hand import answer
from tests.reward.curious import VECTOR, feed, make, rollout


def novelty(distances, mean=1.0, **options):
    return episodic_novelty(np.array(distances), mean, NGUConfig(**options)).tolist()


def test_novelty_is_one_over_the_similarity_to_neighbours():
    options = {"kernel_epsilon": 0.5, "cluster_distance": 0.25, "constant": 0.125}
    # In terms of the mean they are 0.25, 0.75 and infinitely far, and less 0.25: 0, 0.5 and so on.
    similarity = np.sqrt(1.0 + 0.5 + 0.0) + 0.125
    assert novelty([[1.0, 3.0, np.inf]], mean=4.0, **options) == [pytest.approx(1 / similarity)]


def test_points_within_the_cluster_distance_are_the_same():
    assert novelty([0.0]) == novelty([0.008]) == pytest.approx(1 / 1.001)
    assert novelty([0.009]) > novelty([0.008])


def test_without_neighbours_novelty_is_as_large_as_can_be():
    assert novelty([np.inf, np.inf]) == pytest.approx(1000.0)


def test_what_is_too_similar_is_not_novel_at_all():
    assert novelty([0.0] * 4, max_similarity=2.0) == 0.0
    assert novelty([0.0] * 3, max_similarity=2.0) == pytest.approx(1 / (np.sqrt(3) + 0.001))


def test_distances_of_0_alone_are_no_trouble():
    assert novelty([0.0], mean=0.0) == pytest.approx(1 / 1.001)


# --- the lifelong factor


@pytest.mark.parametrize(
    ("error", "factor"),
    [(2.0, 1.0), (3.0, 1.0), (3.5, 1.25), (5.0, 2.0), (9.0, 4.0), (11.0, 5.0), (99.0, 5.0)],
)
def test_the_lifelong_factor_grows_with_errors_above_the_mean(error, factor):
    model = make("ngu", embedding_size=1)
    answer(model.network.lifelong.target, "layers.1.bias", 0.0)
    answer(model.network.lifelong.predictor, "layers.1.bias", np.sqrt(error))
    model.errors.collect(np.array([1.0, 5.0]))  # 3 on average, with a spread of 2
    rows = {"obs_next": torch.zeros(2, 3)}
    np.testing.assert_allclose(model.lifelong(rows).detach(), factor, rtol=1e-5)


def test_the_bonus_is_the_product_of_both():
    model = make("ngu", normalize_bonus=False)
    data = feed(model, rollout())
    factor = model.lifelong(model.tensors(data)).detach().numpy()
    assert factor.min() == 1.0
    assert 1.0 < factor.max() <= 5.0
    np.testing.assert_allclose(model.estimate(data).rew, data.scanned * factor, rtol=1e-5)
    twice = data.replace(scanned=2 * data.scanned)
    np.testing.assert_allclose(model.estimate(twice).rew, 2 * model.estimate(data).rew, rtol=1e-5)


def test_what_was_scanned_long_ago_follows_what_was_learned_since():
    model = make("ngu", normalize_bonus=False, learning_rate=1e-2)
    data = feed(model, rollout())
    factor = model.estimate(data).rew / data.scanned
    model.fit(50)
    assert (model.estimate(data).rew / data.scanned).mean() < 0.9 * factor.mean()


def test_the_factor_is_larger_for_what_no_episode_saw():
    model = make("ngu", learning_rate=3e-3)
    for seed in range(60):
        feed(model, rollout((16, 4), shift=np.float32([2, 0, 0]), seed=seed % 3))
        model.train()
    known, other = (
        model.lifelong(model.tensors(rollout(shift=np.float32(shift), seed=1))).mean()
        for shift in ([2, 0, 0], [-6, 6, 6])
    )
    assert known < 2.0
    assert other > 4.5


# --- episodes


def same(*rows):
    """A rollout of one environment through observations that differ by these numbers alone."""
    data = rollout((len(rows), 1))
    data.obs[:, 0] = np.array(rows, np.float32)[:, None]
    data.obs_next[:-1] = data.obs[1:]
    return data


def test_what_the_episode_saw_before_is_less_novel():
    model = make("ngu")
    found = model.scan(same(0.0, 1.0, 2.0, 0.0, 9.0))[:, 0]
    # After the third step it is where it began.
    assert found[2] < 1.0 < found[0]
    assert found[2] < found[1]


@pytest.mark.parametrize("end", ["terminated", "truncated", "cut", "break_off"])
def test_another_episode_starts_from_nothing(end):
    model, other = make("ngu"), make("ngu")
    for each in (model, other):
        each.distances.collect(np.ones(10))
    data = same(0.0, 1.0, 2.0, 1.0, 0.0, 2.0)
    if end == "break_off":
        model.scan(data[:3])
        model.break_off(np.array([0]))
        found = model.scan(data[3:])
    else:
        data[end][2] = True
        found = model.scan(data)[3:]
    np.testing.assert_allclose(found, other.scan(data[3:]), rtol=1e-5)
    assert model.episodes.state_dict()["written"].tolist() == [3]


def test_an_episode_goes_on_in_the_next_rollout_and_rows_that_are_no_data_are_skipped():
    model, other = make("ngu"), make("ngu")
    data = rollout((10, 2))
    data.mask[4, 0] = False
    for each in (model, other):
        each.distances.collect(np.ones(10))
    whole = model.scan(data)
    pieces = np.concatenate([other.scan(data[:5]), other.scan(data[5:])])
    np.testing.assert_allclose(pieces[data.mask], whole[data.mask], rtol=1e-5)
    assert model.episodes.state_dict()["written"].tolist() == [9, 10]


def test_no_environment_depends_on_another():
    model, other = make("ngu"), make("ngu")
    data = rollout((10, 4))
    for each in (model, other):
        each.distances.collect(np.ones(10))
    np.testing.assert_allclose(model.scan(data)[:, 2:3], other.scan(data[:, 2:3]), rtol=1e-5)


def test_unscanned_transitions_are_one_episode_from_its_start():
    model = make("ngu", VECTOR)
    data = feed(model, rollout())
    model.break_off()
    scanned = model.scan(data)
    alone = model.estimate(data.replace(scanned=scanned)).rew
    del data.scanned
    held = model.episodes.state_dict()["written"].tolist()
    np.testing.assert_allclose(model.estimate(data).rew, alone, rtol=1e-5)
    np.testing.assert_allclose(model.estimate(data[:, 1]).rew, alone[:, 1], rtol=1e-5)
    assert model.episodes.state_dict()["written"].tolist() == held


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_unscanned_transitions_are_as_many_episodes_as_end(end):
    model = make("ngu", VECTOR)
    feed(model, rollout())
    data = same(0.0, 1.0, 2.0, 1.0, 0.0, 2.0)
    data[end][2] = True
    data.mask[4] = False
    model.break_off()
    expected = model.estimate(data.replace(scanned=model.scan(data))).rew[:, 0]
    for shown in (data, data[:, 0], data[:, :, None]):
        found = model.estimate(shown).rew.reshape(-1)
        np.testing.assert_allclose(found[data.mask[:, 0]], expected[data.mask[:, 0]], rtol=1e-5)
    parts = [model.estimate(data[part, 0]).rew for part in (slice(3), slice(3, None))]
    np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-5)


def test_the_memory_of_an_episode_has_an_end():
    model = make("ngu", memory_size=2)
    model.distances.collect(np.ones(10))
    short = model.scan(same(0.0, 5.0, 9.0, 0.0, 5.0))
    assert short[2, 0] > 10.0  # back where it began, which it has forgotten


def test_as_a_term_it_finds_again_what_it_scanned():
    reward = make_reward({"type": "ngu", "hidden_size": [16], "warmup": 1, "train_every": 1})
    model = reward.terms["ngu"].model
    data, rows = rollout(), np.arange(80).reshape(20, 4)
    reward.collect_data(data, rows)
    reward.train()
    batch = reward.resolve(data, rows)
    shuffled = np.random.default_rng(0).permutation(80)[:10]
    part = reward.resolve(data[shuffled // 4, shuffled % 4], shuffled)
    np.testing.assert_allclose(part.rew, batch.rew.reshape(-1)[shuffled], rtol=1e-4)
    assert (batch.rew > 0).all()
    assert model.seen == 80
