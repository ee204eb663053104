import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from guerdon.data import Batch
from guerdon.reward.ranking import NO_PAIRS, Pairs, RankingConfig, RankingNetwork, RankingReward
from tests.reward.ranked import same_states, setting

ROWS = Batch(obs=torch.arange(20.0).reshape(10, 2))
CPU = torch.device("cpu")


def pairs(first=(0, 4), second=(2, 7), length=(2, 3), label=(0.0, 1.0), rows=ROWS, held_out=False):
    arrays = [np.array(each) for each in (first, second, length, label)]
    return Pairs(rows, *arrays, np.full(len(first), held_out))


def network(**options):
    return RankingNetwork(setting(), RankingConfig(inputs=["obs"], **options))


class Linear(nn.Module):
    """Networks that return the first number of an observation, times a value each."""

    def __init__(self, *values):
        super().__init__()
        self.values = values

    def forward(self, x):
        return torch.stack([value * x[..., :1] for value in self.values])


def linear(*values, **options):
    made = network(members=len(values), **options)
    made.members = Linear(*values)
    return made


def test_pairs_of_several_lengths_are_padded_and_masked():
    rows, mask, label = pairs().take(np.array([1, 0]), CPU)
    first = ROWS["obs"][:, 0]
    assert rows["obs"].shape == (2, 2, 3, 2)
    assert rows["obs"][0, 0, :, 0].tolist() == first[4:7].tolist()
    assert rows["obs"][1, 0, :, 0].tolist() == first[7:10].tolist()
    assert rows["obs"][0, 1, :2, 0].tolist() == first[0:2].tolist()
    assert rows["obs"][1, 1, :2, 0].tolist() == first[2:4].tolist()
    assert mask.tolist() == [[True, True, True], [True, True, False]]
    assert label.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("keys", [("a",), ("a.b",), ("a", "b"), ("a", "b.c")], ids=str)
def test_joined_pairs_find_their_rows(keys):
    def segments(*numbers):
        obs = {key: torch.tensor(numbers) for key in keys}
        return Batch(obs=obs, act=torch.tensor(numbers))

    joined = NO_PAIRS.join(pairs((0,), (2,), (2,), (0.0,), segments(1.0, 2.0, 3.0, 4.0)))
    joined = joined.join(pairs((0,), (1,), (1,), (0.5,), segments(5.0, 6.0), held_out=True))
    rows, mask, label = joined.take(np.arange(2), CPU)
    assert rows["obs"].keys() == {*keys}
    for part in (rows["act"], *rows["obs"].values()):
        assert torch.where(mask, part, 0).sum(-1).tolist() == [[3, 5], [7, 6]]
    assert label.tolist() == [0.0, 0.5]
    assert joined.held_out.tolist() == [False, True]


def test_the_logit_is_the_difference_of_the_masked_sums():
    made = linear(1.0, -0.5)
    rows, mask, _ = pairs().take(np.array([0, 1]), CPU)
    # clipped to 10 each by the input:  (4 + 6) - (0 + 2) = 8;  (10 + 10 + 10) - (8 + 10 + 10) = 2
    assert made.logit(rows, mask).tolist() == [[8.0, 2.0], [-4.0, -1.0]]


def test_the_logit_is_bounded():
    made = linear(1.0, max_difference=3.0)
    rows, mask, _ = pairs().take(np.array([0, 1]), CPU)
    assert made.logit(rows, mask).tolist() == [[3.0, 2.0]]


def test_the_loss_is_the_mean_over_pairs_and_the_sum_over_networks():
    made = linear(1.0, -0.5, label_noise=0.0)
    rows, mask, label = pairs().take(np.array([0, 1]), CPU)
    one = (math.log(1 + math.exp(8)) + math.log(1 + math.exp(-2))) / 2
    two = (math.log(1 + math.exp(-4)) + math.log(1 + math.exp(1))) / 2
    loss = made.loss(made.logit(rows, mask), label)
    assert loss.item() == pytest.approx(one + two, rel=1e-5)


def test_masked_rows_do_not_change_the_loss():
    made = network()
    rows, mask, label = pairs().take(np.array([0, 1]), CPU)
    before = made.loss(made.logit(rows, mask), label)
    rows["obs"][:, 0, 2] = 7.0
    assert made.loss(made.logit(rows, mask), label).item() == before.item()


def test_rewards_have_mean_0_and_standard_deviation_1():
    made = linear(2.0, -1.0, 0.5)
    rows = Batch(obs=torch.tensor([[1.0, 0.0], [3.0, 0.0], [-1.0, 0.0]]))
    assert made(rows).tolist() == pytest.approx([0.5, 1.5, -0.5])  # the mean of the outputs
    made.rescale(rows)
    # Standardised, one is the opposite of the others: a third is left, which is made 1 again.
    assert made(rows).tolist() == pytest.approx([0.0, math.sqrt(1.5), -math.sqrt(1.5)], abs=1e-6)


def test_rescaled_networks_have_equal_weight():
    made = linear(1000.0, 1.0)
    made.rescale(Batch(obs=torch.tensor([[1.0, 0.0], [-1.0, 0.0]])))
    assert (made.scale * torch.tensor([1000.0, 1.0])).tolist() == pytest.approx([1.0, 1.0])


def test_tanh_bounds_rewards_which_are_not_rescaled():
    made = linear(100.0, 100.0, 100.0, output="tanh")
    rows = Batch(obs=torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]))
    made.rescale(rows)
    assert made(rows).tolist() == [1.0, -1.0, 0.0]


def test_networks_are_initialised_differently():
    raw = network(members=3).raw(ROWS)
    assert raw.shape == (3, 10)
    assert not torch.allclose(raw[0], raw[1])


def test_initial_logits_are_small():
    assert network().logit(*pairs().take(np.array([0, 1]), CPU)[:2]).abs().max() < 0.2


def test_symlog():
    made = linear(1.0, symlog=True)
    rows = Batch(obs=torch.tensor([[math.e - 1, 0.0], [1 - math.e**3, 0.0], [0.0, 5.0]]))
    assert made(rows).tolist() == pytest.approx([1.0, -3.0, 0.0], abs=1e-5)
    made.update(rows)
    mean = made.input.normalizers["obs"].mean
    assert mean.tolist() == pytest.approx([-2 / 3, math.log(6) / 3])


def test_symlog_leaves_actions_and_bytes_as_they_are():
    data = Batch(obs=torch.tensor([3], dtype=torch.uint8), act=torch.tensor([3.0]))
    mapped = network(symlog=True)._mapped(data)
    assert mapped["obs"].tolist() == [3]
    assert mapped["act"].tolist() == [3.0]


# --- fitting


def drawn(number, seed, flip=False, held_out=False):
    """Pairs of which the segment with the larger first numbers is better, or the other one."""
    generator = np.random.default_rng(seed)
    obs = torch.from_numpy(generator.normal(size=(400, 2)).astype(np.float32))
    first, second = generator.integers(390, size=(2, number))
    sums = [sum(obs[start + i, 0] for i in range(5)) for start in (*first, *second)]
    label = np.array(sums[number:]) > np.array(sums[:number])
    label = (label ^ flip).astype(float)
    return pairs(first, second, np.full(number, 5), label, Batch(obs=obs), held_out)


def model_of(*parts, **options):
    options = {"inputs": ["obs"], "hidden_size": [16], "learning_rate": 0.01, **options}
    model = RankingReward(options, setting())
    for part in parts:
        model.pairs = model.pairs.join(part)
    return model


def test_a_fit_stops_early_with_the_best_weights():
    data = drawn(40, 0), drawn(40, 1, flip=True, held_out=True)
    model, best = model_of(*data, patience=2), model_of(*data)
    assert model.fit(1000)["steps"] == 60  # the first evaluation, and two that were no better
    assert model.trained == 60
    best.fit(20)
    assert same_states(model.network.state_dict(), best.network.state_dict())


def test_a_fit_ranks_held_out_pairs():
    model = model_of(drawn(300, 0), drawn(100, 1, held_out=True), label_noise=0.0)
    metrics = model.fit(200)
    assert metrics["accuracy"] > 0.9
    assert metrics["validation_accuracy"] > 0.9
    assert metrics["validation_loss"] == pytest.approx(model.evaluate()["validation_loss"])


def test_held_out_pairs_are_not_fitted():
    data = drawn(40, 0), drawn(5, 1, held_out=True), drawn(5, 1, flip=True, held_out=True)
    model, other = model_of(*data[:2]), model_of(data[0], data[2])
    model.fit(20)
    other.fit(20)
    assert same_states(model.network.state_dict(), other.network.state_dict())


def test_a_few_held_out_pairs_are_evaluated_but_do_not_stop_a_fit():
    model = model_of(drawn(40, 0), drawn(5, 1, flip=True, held_out=True), patience=1)
    metrics = model.fit(100)
    assert metrics["steps"] == 100
    assert "validation_accuracy" in metrics


def test_without_held_out_pairs_all_steps_are_taken():
    model = model_of(drawn(40, 0))
    before = copy.deepcopy(model.network.state_dict())
    metrics = model.fit(30)
    assert metrics["steps"] == 30
    assert metrics.keys() == {"loss", "accuracy", "steps"}
    assert not same_states(model.network.state_dict(), before)
