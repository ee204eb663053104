import math

import numpy as np
import pytest
import torch
from torch import nn

from guerdon.reward.ranking import Best, Pairs, RankingConfig, RankingNetwork, RankingReward
from tests.reward.ranked import setting

ROWS = {"obs": torch.arange(20.0).reshape(10, 2)}


def pairs(first=(0, 4), second=(2, 7), length=(2, 3), label=(0.0, 1.0), rows=None):
    arrays = [np.array(each) for each in (first, second, length, label)]
    return Pairs(rows or ROWS, *arrays)


def network(**options):
    return RankingNetwork(setting(), RankingConfig(inputs=["obs"], **options))


class ByHand(nn.Module):
    """Networks that say the first number of an observation, times a value each."""

    def __init__(self, *values):
        super().__init__()
        self.values = values

    def forward(self, x):
        return torch.stack([value * x[:, :1] for value in self.values])


def by_hand(*values, **options):
    made = network(members=len(values), **options)
    made.members = ByHand(*values)
    return made


def test_pairs_are_taken_with_a_mask_where_segments_are_shorter():
    rows, mask, label = pairs().take(np.array([1, 0]), "cpu")
    first = ROWS["obs"][:, 0]
    assert rows["obs"].shape == (2, 2, 3, 2)
    assert rows["obs"][0, 0, :, 0].tolist() == first[4:7].tolist()
    assert rows["obs"][1, 0, :, 0].tolist() == first[7:10].tolist()
    assert rows["obs"][0, 1, :2, 0].tolist() == first[0:2].tolist()
    assert rows["obs"][1, 1, :2, 0].tolist() == first[2:4].tolist()
    assert mask.tolist() == [[True, True, True], [True, True, False]]
    assert label.tolist() == [1.0, 0.0]


def test_a_logit_is_the_difference_of_the_sums_of_what_counts():
    made = by_hand(1.0, -0.5)
    rows, mask, _ = pairs().take(np.array([0, 1]), "cpu")
    # clipped to 10 each by the input:  (4 + 6) - (0 + 2) = 8;  (10 + 10 + 10) - (8 + 10 + 10) = 2
    assert made.logit(rows, mask).tolist() == [[8.0, 2.0], [-4.0, -1.0]]


def test_a_difference_counts_up_to_a_limit():
    made = by_hand(1.0, max_difference=3.0)
    rows, mask, _ = pairs().take(np.array([0, 1]), "cpu")
    assert made.logit(rows, mask).tolist() == [[3.0, 2.0]]


def test_the_loss_is_the_mean_over_pairs_and_the_sum_over_networks():
    made = by_hand(1.0, -0.5, label_noise=0.0)
    loss = made.learn(*pairs().take(np.array([0, 1]), "cpu"))
    one = (math.log(1 + math.exp(8)) + math.log(1 + math.exp(-2))) / 2
    two = (math.log(1 + math.exp(-4)) + math.log(1 + math.exp(1))) / 2
    assert loss.item() == pytest.approx(one + two, rel=1e-5)
    assert made.verdicts.tolist() == [2.0, 0.5]


def test_rows_that_are_masked_teach_nothing():
    made = network()
    rows, mask, label = pairs().take(np.array([0, 1]), "cpu")
    before = made.learn(rows, mask, label)
    rows["obs"][:, 0, 2] = 7.0
    assert made.learn(rows, mask, label).item() == before.item()


def test_rewards_get_mean_0_and_spread_1():
    made = by_hand(2.0, -1.0, 0.5)
    rows = {"obs": torch.tensor([[1.0, 0.0], [3.0, 0.0], [-1.0, 0.0]])}
    assert made(rows).tolist() == pytest.approx([0.5, 1.5, -0.5])  # the mean of what is said
    made.rescale(rows)
    # Standardised, one says the opposite of the others: a third is left, which is made 1 again.
    assert made(rows).tolist() == pytest.approx([0.0, math.sqrt(1.5), -math.sqrt(1.5)], abs=1e-6)


def test_every_network_has_the_same_say():
    made = by_hand(1000.0, 1.0)
    rows = {"obs": torch.tensor([[1.0, 0.0], [-1.0, 0.0]])}
    made.rescale(rows)
    assert (made.scale * torch.tensor([1000.0, 1.0])).tolist() == pytest.approx([1.0, 1.0])


def test_bounded_networks_say_nothing_beyond_1_and_are_not_rescaled():
    made = by_hand(100.0, 100.0, 100.0, output="tanh")
    rows = {"obs": torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])}
    made.rescale(rows)
    assert made(rows).tolist() == [1.0, -1.0, 0.0]


def test_networks_begin_as_different_ones():
    raw = network(members=3).raw(ROWS)
    assert raw.shape == (3, 10)
    assert not torch.allclose(raw[0], raw[1])


def test_nothing_is_preferred_before_anything_is_learned():
    logit = network().logit(*pairs().take(np.array([0, 1]), "cpu")[:2])
    assert logit.abs().max() < 0.2


def test_numbers_that_go_far_can_be_read_as_logarithms():
    made = by_hand(1.0, symlog=True)
    rows = {"obs": torch.tensor([[math.e - 1, 0.0], [1 - math.e**3, 0.0], [0.0, 5.0]])}
    assert made(rows).tolist() == pytest.approx([1.0, -3.0, 0.0], abs=1e-5)
    made.update(rows)
    mean = made.input.normalizers["obs"].mean
    assert mean.tolist() == pytest.approx([-2 / 3, math.log(6) / 3])


def test_actions_and_bytes_are_read_as_they_are():
    made = network(symlog=True)
    data = {"obs": torch.tensor([3], dtype=torch.uint8), "act": torch.tensor([3.0])}
    read = made._read(data)
    assert read["obs"].tolist() == [3]
    assert read["act"].tolist() == [3.0]


# --- when to stop


def test_the_best_weights_stay():
    layer = nn.Linear(1, 1)
    best = Best(layer, patience=2)
    enough = []
    for weight, loss in [(1.0, 0.5), (2.0, 0.3), (3.0, 0.4), (4.0, 0.35)]:
        nn.init.constant_(layer.weight, weight)
        enough.append(best.is_enough(loss))
    assert enough == [False, False, False, True]
    best.restore()
    assert layer.weight.item() == 2.0


def test_without_any_look_the_weights_stay_as_they_are():
    layer = nn.Linear(1, 1)
    before = layer.weight.item()
    Best(layer, patience=1).restore()
    assert layer.weight.item() == before


def model_of(**options):
    model = RankingReward(
        {"inputs": ["obs"], "hidden_size": [16], "learning_rate": 0.01, **options}
    )
    model.setup(setting())
    return model


def drawn(number, seed, flip=False):
    """Pairs of which the segment with the larger first numbers is better, or the other one."""
    generator = np.random.default_rng(seed)
    obs = torch.from_numpy(generator.normal(size=(400, 2)).astype(np.float32))
    first, second = generator.integers(390, size=(2, number))
    sums = [sum(obs[start + i, 0] for i in range(5)) for start in (*first, *second)]
    label = np.array(sums[number:]) > np.array(sums[:number])
    length = np.full(number, 5)
    return pairs(first, second, length, (label ^ flip).astype(float), {"obs": obs})


def test_a_fit_ends_where_held_out_pairs_are_judged_no_better():
    model = model_of(patience=2)
    model.pairs, model.held_out = drawn(40, 0), drawn(40, 1, flip=True)
    metrics = model.fit(1000)
    assert metrics["steps"] == 60  # a first look, and two that were no better
    assert model.trained == 60


def test_a_fit_ranks_pairs_that_it_has_not_seen():
    model = model_of(label_noise=0.0)
    model.pairs, model.held_out = drawn(300, 0), drawn(100, 1)
    metrics = model.fit(200)
    assert metrics["accuracy"] > 0.9
    assert metrics["validation_accuracy"] > 0.9
    assert metrics["validation_loss"] == pytest.approx(
        model.judge(model.held_out)["validation_loss"]
    )


def test_a_few_held_out_pairs_are_measured_but_do_not_end_a_fit():
    model = model_of(patience=1)
    model.pairs, model.held_out = drawn(40, 0), drawn(5, 1, flip=True)
    metrics = model.fit(100)
    assert metrics["steps"] == 100
    assert "validation_accuracy" in metrics


def test_without_held_out_pairs_all_steps_are_taken():
    model = model_of()
    model.pairs = drawn(40, 0)
    metrics = model.fit(30)
    assert metrics["steps"] == 30
    assert metrics.keys() == {"loss", "accuracy", "steps"}
