import numpy as np
import pytest
import torch

from guerdon.data import Batch
from guerdon.reward import Setting, make_reward
from guerdon.reward.ngu import NGUConfig, episodic_novelty
from guerdon.reward.scaling import RunningMoments
from tests.policy.hand import answer
from tests.reward.curious import feed, make, rollout
from tests.reward.experts import TWO, VECTOR
from tests.rounding import assert_close


def novelty_of(distances, mean=1.0, **options):
    return episodic_novelty(np.array(distances), mean, NGUConfig(**options)).tolist()


def test_novelty_is_one_over_the_similarity_to_neighbours():
    options = {"kernel_epsilon": 0.5, "cluster_distance": 0.25, "constant": 0.125}
    # Divided by the mean and less 0.25, the distances are 0, 0.5 and infinite.
    similarity = np.sqrt(1.0 + 0.5 + 0.0) + 0.125
    assert novelty_of([[1.0, 3.0, np.inf]], 4.0, **options) == [pytest.approx(1 / similarity)]


def test_points_within_the_cluster_distance_are_the_same():
    assert novelty_of([0.0]) == novelty_of([0.008]) == pytest.approx(1 / 1.001)
    assert novelty_of([0.009]) > novelty_of([0.008])


def test_novelty_is_at_its_maximum_without_neighbours():
    assert novelty_of([np.inf, np.inf]) == pytest.approx(1000.0)


def test_novelty_is_0_above_the_maximum_similarity():
    assert novelty_of([0.0] * 4, max_similarity=2.0) == 0.0
    assert novelty_of([0.0] * 3, max_similarity=2.0) == pytest.approx(1 / (np.sqrt(3) + 0.001))


def test_a_mean_distance_of_0():
    assert novelty_of([0.0], mean=0.0) == pytest.approx(1 / 1.001)


# --- the lifelong factor


def factors(model, batch):
    """The lifelong factors of transitions: their bonus with an episodic novelty of 1."""
    with torch.no_grad():
        error = model.network(batch.to_device(model.device))
        return model.bonus(error, Batch(novelty=torch.ones(error.shape))).numpy()


@pytest.mark.parametrize(
    ("error", "factor"),
    [(2.0, 1.0), (3.0, 1.0), (3.5, 1.25), (5.0, 2.0), (9.0, 4.0), (11.0, 5.0), (99.0, 5.0)],
)
def test_the_lifelong_factor_grows_with_errors_above_the_mean(error, factor):
    model = make("ngu", embedding_size=1)
    answer(model.network.lifelong.target, "layers.1.bias", 0.0)
    answer(model.network.lifelong.predictor, "layers.1.bias", np.sqrt(error))
    model.errors.update(np.array([1.0, 5.0]), 100)  # mean 3, standard deviation 2
    assert_close(factors(model, rollout()), factor)


def test_the_bonus_is_the_product_of_both():
    model = make("ngu", normalize_bonus=False)
    batch = feed(model, rollout())
    factor = factors(model, batch)
    assert factor.min() == 1.0
    assert 1.0 < factor.max() <= 5.0
    assert_close(model.estimate(batch).rew, batch.novelty * factor)
    twice = batch.replace(novelty=2 * batch.novelty)
    assert_close(model.estimate(twice).rew, 2 * model.estimate(batch).rew)


def test_the_factor_of_old_transitions_follows_the_training():
    model = make("ngu", normalize_bonus=False, learning_rate=1e-2)
    batch = feed(model, rollout())
    factor = model.estimate(batch).rew / batch.novelty
    model.fit(50)
    assert (model.estimate(batch).rew / batch.novelty).mean() < 0.9 * factor.mean()


def test_the_factor_is_larger_for_unfamiliar_transitions():
    model = make("ngu", learning_rate=3e-3)
    for seed in range(60):
        feed(model, rollout((16, 4), shift=np.float32([2, 0, 0]), seed=seed % 3))
        model.train()
    known, other = (
        factors(model, rollout(shift=np.float32(shift), seed=1)).mean()
        for shift in ([2, 0, 0], [-6, 6, 6])
    )
    assert known < 2.0
    assert other > 4.5


def test_moments_within_the_window():
    moments = RunningMoments()
    for values in ([1.0, 3.0], [], [5.0, 7.0, 4.0]):
        moments.update(np.array(values), 100)
    assert moments.mean == pytest.approx(4.0)
    assert moments.variance == pytest.approx(4.0)


def test_moments_of_older_numbers_decay():
    moments = RunningMoments()
    moments.update(np.zeros(10), 10)
    moments.update(np.ones(5), 10)
    assert moments.mean == pytest.approx(0.5)
    moments.update(np.full(20, 3.0), 10)
    assert moments.mean == pytest.approx(3.0)
    assert moments.variance == pytest.approx(0.0, abs=1e-10)


# --- episodes


def known(**options):
    """A model with a mean distance of 1."""
    model = make("ngu", **options)
    model.distances.update(np.ones(10), 100)
    return model


def novelty(model, batch, memory=None):
    memory = model.new_memory(batch.rew.shape[1]) if memory is None else memory
    return model.annotate(batch, memory)[0]["novelty"]


def along(*numbers):
    """A rollout of one environment through observations that consist of these numbers."""
    batch = rollout((len(numbers), 1))
    batch.obs[:, 0] = np.array(numbers, np.float32)[:, None]
    batch.obs_next[:-1] = batch.obs[1:]
    return batch


def test_points_of_the_episode_are_less_novel():
    found = novelty(make("ngu"), along(0.0, 1.0, 2.0, 0.0, 9.0))[:, 0]
    # The third step leads to where the episode began.
    assert found[2] < 1.0 < found[0]
    assert found[2] < found[1]


@pytest.mark.parametrize("pieces", [False, True])
def test_another_episode_starts_from_nothing(pieces):
    model, batch = known(), along(0.0, 1.0, 2.0, 1.0, 0.0, 2.0)
    batch.first[3] = True
    memory = model.new_memory(1)
    if pieces:
        novelty(model, batch[:3], memory)
        found = novelty(model, batch[3:], memory)
    else:
        found = novelty(model, batch, memory)[3:]
    assert_close(found, novelty(model, batch[3:]))
    assert memory[1].tolist() == [3]


def test_an_episode_continues_in_the_next_rollout_without_rows_that_are_no_transitions():
    model, batch = known(), rollout((10, 2))
    batch.mask[4, 0] = False
    whole, memory = novelty(model, batch), model.new_memory(2)
    pieces = np.concatenate(
        [novelty(model, batch[part], memory) for part in (slice(5), slice(5, None))]
    )
    assert_close(pieces[batch.mask], whole[batch.mask])
    assert memory[1].tolist() == [9, 10]


def test_no_environment_depends_on_another():
    model, batch = known(), rollout((10, 4))
    one = novelty(model, batch[:, 2:3])
    assert_close(novelty(model, batch)[:, 2:3], one)


def test_annotating_changes_nothing_but_the_memory():
    model, batch = make("ngu"), rollout()
    memory = model.new_memory(4)
    first = novelty(model, batch, memory)
    assert (memory[1] == 20).all()
    assert (model.errors.count, model.distances.count, model.collected) == (0, 0, 0)
    np.testing.assert_array_equal(novelty(model, batch), first)


def test_the_length_of_an_episode_that_is_remembered():
    found = novelty(known(memory_size=2), along(0.0, 5.0, 9.0, 0.0, 5.0))
    assert found[2, 0] > 10.0  # back at the start, which is no longer there


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_transitions_without_annotations_are_whole_episodes(end):
    model = make("ngu")
    feed(model, rollout())
    batch = along(0.0, 1.0, 2.0, 1.0, 0.0, 2.0)
    batch[end][2] = batch.first[3] = True
    batch.mask[4], batch.first[5] = False, True  # a row that is no transition ends an episode
    expected = model.estimate(batch.replace(novelty=novelty(model, batch))).rew[:, 0]
    for shown in (batch, batch[:, 0], batch[:, :, None]):
        found = model.estimate(shown).rew.reshape(-1)
        assert_close(found[batch.mask[:, 0]], expected[batch.mask[:, 0]])
    parts = [model.estimate(batch[part, 0]).rew for part in (slice(3), slice(3, None))]
    assert_close(np.concatenate(parts), expected)


def test_transitions_of_several_environments_without_annotations():
    model = make("ngu")
    batch = feed(model, rollout())
    expected = model.estimate(batch.replace(novelty=novelty(model, batch))).rew
    assert_close(model.estimate(rollout()).rew, expected)
    assert_close(model.estimate(rollout()[:, 1]).rew, expected[:, 1])


@pytest.mark.parametrize("n_envs", [1, 3, 5])
def test_a_memory_of_other_environments_is_refused(n_envs):
    model = make("ngu")
    with pytest.raises(ValueError, match="the memory of ngu is of other environments"):
        model.annotate(rollout(), model.new_memory(n_envs))  # compiled code would leave the array


def test_as_a_term_it_scores_stored_annotations():
    config = {"type": "ngu", "hidden_size": [16], "warmup": 1, "train_every": 1}
    reward = make_reward(config, Setting(VECTOR, TWO))
    batch = rollout()
    stored, _ = reward.annotate(batch, reward.new_memory(4))
    reward.collect_data(stored)
    reward.train()
    assert list(stored.annotations.ngu.keys()) == ["novelty"]
    rew = reward.resolve(stored.to_torch()).rew
    drawn = np.random.default_rng(0).permutation(80)[:10]
    part = reward.resolve(stored[drawn // 4, drawn % 4].to_torch()).rew
    assert_close(part, rew.reshape(-1)[drawn], rtol=1e-4)
    assert (rew > 0).all()
    assert reward.terms["ngu"].model.collected == 80
