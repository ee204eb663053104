"""Prioritized replay: what is drawn how often, with which weight, after everything that can happen.

Observation and action of a row are the number of its step; an environment's number is the hundreds.
"""

import json
import pickle

import numpy as np
import pytest
import torch

from guerdon.data import PrioritizedReplayBuffer
from tests.rounding import assert_close


def step(buffer, number, done=False):
    """Adds one step of all environments."""
    n = buffer.n_envs
    ids = number + 100.0 * np.arange(n)
    fields = {"obs": ids[:, None], "act": ids, "rew": np.zeros(n), "obs_next": ids[:, None] + 1}
    fields |= {"terminated": np.full(n, done), "truncated": np.zeros(n, bool)}
    if n == 1:
        fields = {name: value[0] for name, value in fields.items()}
    return buffer.add(**fields)


def filled(steps, size=None, ends=(), **options):
    options = {"alpha": 1.0, "seed": 0, **options}
    n_envs = options.get("n_envs", 1)
    buffer = PrioritizedReplayBuffer(size or steps * n_envs, **options)
    for number in range(steps):
        step(buffer, number, number in ends)
    return buffer


def chi_square(counts, shares):
    expected = counts.sum() * np.asarray(shares) / np.sum(shares)
    return np.sum((counts - expected) ** 2 / expected)


def snapshot(buffer):
    """All that an update of priorities may change; a new row gets the largest."""
    return buffer.priorities.tolist(), buffer.training_state()["meta"]["largest"]


# --- drawing


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_rows_are_drawn_in_proportion_to_powers_of_errors(alpha):
    buffer = filled(4, alpha=alpha)
    errors = np.array([1.0, 2.0, 3.0, 4.0])
    buffer.update_weight(np.arange(4), errors)
    draws = np.concatenate([buffer.sample(1)[1] for _ in range(4000)])
    counts = np.bincount(draws, minlength=4)
    assert chi_square(counts, errors**alpha) < 16.27  # exceeded by chance once in a thousand
    assert chi_square(counts, errors ** (alpha + 0.25)) > 16.27


def test_a_batch_takes_one_draw_from_each_share_of_the_mass():
    buffer = filled(4)
    buffer.update_weight([0, 1, 2, 3], [1, 2, 3, 4])
    for _ in range(20):
        assert np.bincount(buffer.sample(10)[1]).tolist() == [1, 2, 3, 4]


def test_with_alpha_0_all_rows_are_alike():
    buffer = filled(5, alpha=0.0, beta=1.0)
    buffer.update_weight(np.arange(5), [1e-8, 0.0, 1.0, 1e3, 1e8])
    assert buffer.priorities.tolist() == [1] * 5
    batch, rows = buffer.sample(100)
    assert np.bincount(rows).tolist() == [20] * 5
    assert batch.weight.tolist() == [1] * 100


@pytest.mark.parametrize("ratio", [(1e-8, 1e8), (1e8, 1e-8)])
def test_priorities_of_very_different_size(ratio):
    buffer = filled(3, beta=1.0)
    buffer.update_weight([0, 1, 2], [ratio[0], ratio[1], ratio[0]])
    batch, rows = buffer.sample(1000)
    small, large = ([1], [0, 2]) if ratio[0] > 1 else ([0, 2], [1])
    assert set(rows) == set(large)
    assert batch.weight.tolist() == [1] * 1000
    everything, _ = buffer.sample(0)
    assert everything.weight[small].tolist() == [1] * len(small)
    assert_close(everything.weight[large], 2e-16)
    # Nothing of the large ones stays in the sums.
    buffer.update_weight(large, [0.0] * len(large))
    buffer.update_weight(small, [0.0] * len(small))
    assert np.bincount(buffer.sample(300)[1]).tolist() == [100] * 3


def test_the_seed_decides_what_is_drawn():
    one, same, other = (filled(50, seed=seed) for seed in (1, 1, 2))
    draws = [buffer.sample(20)[1].tolist() for buffer in (one, same, other)]
    assert draws[0] == draws[1] != draws[2]


def test_rows_without_history_are_not_drawn():
    buffer = filled(8, ends={3}, stack_num=3, sample_avail=True)
    buffer.update_weight(np.arange(8), [1e6, 1e6, 1, 3, 1e6, 1e6, 1, 5])
    draws = np.concatenate([buffer.sample(1)[1] for _ in range(500)])
    counts = np.bincount(draws, minlength=8)
    assert counts[[0, 1, 4, 5]].tolist() == [0] * 4
    assert chi_square(counts[[2, 3, 6, 7]], [1, 3, 1, 5]) < 16.27
    batch, rows = buffer.sample(0)
    assert rows.tolist() == [2, 3, 6, 7]
    assert_close(batch.weight, [1, 3**-0.4, 1, 5**-0.4])


def test_all_rows_where_none_has_history():
    buffer = filled(2, stack_num=3, sample_avail=True)
    batch, rows = buffer.sample(0)
    assert rows.tolist() == batch.weight.tolist() == []
    with pytest.raises(ValueError, match="no row has 2 earlier rows"):
        buffer.sample(1)


def test_an_empty_buffer_has_nothing_to_draw():
    with pytest.raises(ValueError, match="empty"):
        PrioritizedReplayBuffer(4).sample(1)


def test_a_buffer_of_one_row():
    buffer = filled(3, size=1)
    assert len(buffer) == 1
    batch, rows = buffer.sample(4)
    assert rows.tolist() == [0] * 4
    assert batch.act.tolist() == [2] * 4
    buffer.update_weight([0], [7.0])
    assert buffer.priorities.tolist() == pytest.approx([7])
    assert buffer.sample(2)[0].weight.tolist() == [1, 1]


# --- weights


@pytest.mark.parametrize("beta", [0.0, 0.4, 0.5, 1.0])
def test_weights_by_hand(beta):
    buffer = filled(4, beta=beta)
    buffer.update_weight([0, 1, 2, 3], [1, 2, 3, 4])
    batch, rows = buffer.sample(0)
    assert rows.tolist() == [0, 1, 2, 3]
    # N P = 4 * [0.1, 0.2, 0.3, 0.4]
    weights = np.array([0.4, 0.8, 1.2, 1.6]) ** -beta
    assert batch.weight.dtype == np.float32
    assert_close(batch.weight, weights / weights.max())


def test_weights_use_the_same_power_for_every_row():
    buffer = filled(3, alpha=0.5, beta=1.0)
    buffer.update_weight([0, 1, 2], [1, 4, 16])
    assert buffer.sample(0)[0].weight.tolist() == pytest.approx([1, 1 / 2, 1 / 4])


def test_the_largest_weight_of_every_batch_is_1():
    buffer = filled(4, beta=1.0)
    buffer.update_weight([0, 1, 2, 3], [1e-3, 2, 4, 8])
    assert buffer.weights(np.array([3, 1, 2])).tolist() == pytest.approx([1 / 4, 1, 1 / 2])


@pytest.mark.parametrize("setting", ["attribute", "set_beta"])
def test_beta_really_changes(setting):
    buffer = filled(2, beta=0.5)
    buffer.update_weight([0, 1], [1, 4])
    assert buffer.sample(0)[0].weight.tolist() == pytest.approx([1, 0.5])
    if setting == "attribute":
        buffer.beta = 1.0
    else:
        buffer.set_beta(1.0)
    assert buffer.beta == 1
    assert buffer.sample(0)[0].weight.tolist() == pytest.approx([1, 0.25])


def test_beta_may_be_a_number_of_any_library(tmp_path):
    buffer = filled(2)
    for beta in (np.float32(0.5), torch.tensor(0.5), np.float64(0.5)):
        buffer.beta = beta
        buffer.save(tmp_path / "saved")
        assert PrioritizedReplayBuffer.load(tmp_path / "saved").beta == 0.5


@pytest.mark.parametrize("bad", [-0.1, float("nan")])
def test_alpha_and_beta_are_checked(bad):
    with pytest.raises(ValueError, match="alpha is"):
        PrioritizedReplayBuffer(4, alpha=bad)
    with pytest.raises(ValueError, match="beta is"):
        PrioritizedReplayBuffer(4, beta=bad)
    buffer = PrioritizedReplayBuffer(4, beta=0.3)
    with pytest.raises(ValueError, match="beta is"):
        buffer.beta = bad
    with pytest.raises(ValueError, match="beta is"):
        buffer.set_beta(bad)
    assert buffer.beta == 0.3


def test_weights_of_rows_that_are_not_there():
    buffer = filled(2, size=4)
    with pytest.raises(IndexError, match="index 3 has no transition"):
        buffer.weights(np.array([0, 3]))


# --- update_weight


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, np.float32])
def test_errors_in_any_form(kind):
    buffer = filled(3)
    buffer.update_weight(np.array([2, 0]), kind([-5.0, 3.0]))
    assert buffer.priorities.tolist() == pytest.approx([3, 1, 5])


def test_errors_that_carry_a_gradient_or_an_axis_more():
    buffer = filled(3)
    buffer.update_weight([0, 1], torch.tensor([2.0, 3.0], requires_grad=True))
    buffer.update_weight([2], np.array([[4.0]]))
    assert buffer.priorities.tolist() == pytest.approx([2, 3, 4])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_rows_in_any_form(kind):
    buffer = filled(3)
    buffer.update_weight(kind([1, 2]), [2.0, 3.0])
    buffer.update_weight(0, 4.0)
    assert buffer.priorities.tolist() == pytest.approx([4, 2, 3])


@pytest.mark.parametrize(("alpha", "priority"), [(1.0, 1e-8), (0.5, 1e-4)])
def test_an_error_of_0_leaves_a_row_that_can_be_drawn(alpha, priority):
    buffer = filled(2, alpha=alpha)
    buffer.update_weight([0, 1], [0.0, 0.0])
    assert buffer.priorities.tolist() == pytest.approx([priority] * 2, rel=1e-12)
    assert set(buffer.sample(10)[1]) == {0, 1}


def test_of_a_row_that_is_named_twice_the_last_error_counts():
    buffer = filled(2)
    buffer.update_weight([0, 1, 0], [9.0, 2.0, 3.0])
    assert buffer.priorities.tolist() == pytest.approx([3, 2])


@pytest.mark.parametrize(
    ("index", "errors", "problem", "message"),
    [
        ([0, 1], [5.0], ValueError, "2 rows cannot get 1 weights"),
        ([0, 1], [5.0, 6.0, 7.0], ValueError, "2 rows cannot get 3"),
        ([[0, 1], [1, 2]], [[5.0, 6.0], [7.0, 8.0]], ValueError, "2 rows cannot get 4"),
        ([0, 1], [5.0, np.nan], ValueError, "NaN or infinite"),
        ([0, 1], [5.0, -np.inf], ValueError, "NaN or infinite"),
        ([0, 4], [5.0, 6.0], IndexError, r"not in 0\.\.3"),
        ([0, -1], [5.0, 6.0], IndexError, r"not in 0\.\.3"),
        ([0.0, 1.7], [5.0, 6.0], TypeError, "whole numbers, not float64"),
        ([True, False], [5.0, 6.0], TypeError, "whole numbers, not bool"),
    ],
)
def test_a_bad_update_changes_nothing(index, errors, problem, message):
    buffer = filled(4)
    before = snapshot(buffer)
    with pytest.raises(problem, match=message):
        buffer.update_weight(index, errors)
    assert snapshot(buffer) == before


def test_an_update_of_no_rows():
    buffer = filled(2)
    buffer.update_weight([], [])
    assert buffer.priorities.tolist() == [1, 1]


# --- rows that come and go


def test_new_rows_have_the_largest_priority_so_far():
    buffer = filled(2, size=5, alpha=0.5)
    buffer.update_weight([0], [9.0])
    step(buffer, 2)
    buffer.update_weight([0], [4.0])  # what was largest stays largest
    step(buffer, 3)
    assert buffer.priorities.tolist() == pytest.approx([2, 1, 3, 3, 0])


def test_small_errors_do_not_lower_what_new_rows_get():
    buffer = filled(2, size=3)
    buffer.update_weight([0, 1], [0.1, 0.2])
    step(buffer, 2)
    assert buffer.priorities.tolist() == pytest.approx([0.1, 0.2, 1])


def test_a_row_that_is_overwritten_loses_its_priority():
    buffer = filled(3)
    buffer.update_weight([0, 1, 2], [0.1, 5.0, 0.3])
    step(buffer, 3)
    assert buffer.priorities.tolist() == pytest.approx([5, 5, 0.3])
    step(buffer, 4)
    assert buffer.priorities.tolist() == pytest.approx([5, 5, 0.3])
    step(buffer, 5)
    assert buffer.priorities.tolist() == pytest.approx([5, 5, 5])


@pytest.mark.parametrize("index", [[1, 3], [3, 1, 1], slice(1, None, 2), np.arange(4) % 2 > 0])
def test_discarded_rows_are_never_drawn(index):
    buffer = filled(4)
    buffer.discard(index)
    assert buffer.priorities.tolist() == [1, 0, 1, 0]
    assert np.bincount(buffer.sample(10)[1]).tolist() == [5, 0, 5]
    buffer.update_weight([1, 2], [50.0, 2.0])
    assert buffer.priorities.tolist() == pytest.approx([1, 0, 2, 0])
    step(buffer, 4)  # a row that is gone has not raised the largest
    assert buffer.priorities.tolist() == pytest.approx([2, 0, 2, 0])


def test_reset_forgets_the_largest_priority():
    buffer = filled(3)
    buffer.update_weight([0], [9.0])
    buffer.reset()
    assert buffer.priorities.tolist() == [0, 0, 0]
    step(buffer, 0)
    assert buffer.priorities.tolist() == [1, 0, 0]


def test_priorities_go_back_to_the_largest():
    buffer = filled(3, size=5)
    buffer.update_weight([0, 1, 2], [9.0, 0.0, 2.0])
    buffer.discard([2])
    step(buffer, 3)
    buffer.reset_priorities()
    assert buffer.priorities.tolist() == pytest.approx([9, 9, 0, 9, 0])
    assert np.bincount(buffer.sample(30)[1]).tolist() == [10, 10, 0, 10]


def test_rows_of_another_buffer_come_with_the_largest_priority():
    buffer = filled(2, size=6)
    buffer.update_weight([0], [5.0])
    buffer.update(filled(3))
    assert buffer.priorities.tolist() == pytest.approx([5, 1, 5, 5, 5, 0])


def test_a_refused_row_changes_no_priority():
    buffer = filled(3)
    buffer.update_weight([0, 1, 2], [2, 3, 4])
    before = snapshot(buffer)
    with pytest.raises(ValueError, match="NaN"):
        buffer.add(obs=[3.0], act=3.0, rew=np.nan, done=False, obs_next=[4.0])
    assert snapshot(buffer) == before


# --- segments


def test_a_segment_has_the_priority_of_its_first_row():
    buffer = filled(6, ends={2}, beta=1.0)
    buffer.update_weight(np.arange(6), [1e-9, 4, 1e-9, 1e-9, 2, 1e-9])
    batch, rows = buffer.sample(6, length=3)
    assert rows.T.tolist() == [[1, 2, 2]] * 4 + [[4, 5, 5]] * 2
    assert batch.weight.tolist() == pytest.approx([1 / 2] * 4 + [1] * 2)
    buffer.update_weight(rows[:, 3:5], torch.tensor([7.0, 8.0]))
    assert buffer.priorities.tolist() == pytest.approx([0, 7, 0, 0, 8, 0], abs=1e-7)


def test_a_batch_of_segments_has_a_weight_each():
    batch, rows = filled(9).sample(4, length=3, fields=["act"])
    assert rows.shape == batch.act.shape == batch.mask.shape == (3, 4)
    assert batch.weight.shape == (4,)


# --- several environments


def test_steps_of_several_environments_have_priorities():
    buffer = filled(5, n_envs=2, size=8)
    assert buffer.priorities.tolist() == [1] * 8
    buffer.update_weight([1], [3.0])
    for number in range(5, 8):
        step(buffer, number)
    # The newest rows are in slots 1 to 3; slot 0 was written before there was a priority.
    assert buffer.priorities.tolist() == pytest.approx([1, 3, 3, 3, 1, 3, 3, 3])


def test_environments_that_step_at_their_own_pace():
    buffer = PrioritizedReplayBuffer(6, n_envs=3, alpha=1.0)
    zeros = np.zeros(2)
    fields = {"obs": zeros, "act": zeros, "rew": zeros, "done": zeros > 0, "obs_next": zeros}
    buffer.add(fields, [2, 0])
    buffer.update_weight([4], [4.0])
    buffer.add(fields, [0, 1])
    assert buffer.priorities.tolist() == pytest.approx([1, 4, 4, 0, 4, 0])


# --- files


@pytest.mark.parametrize("how", ["save", "pickle", "state"])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_buffer_that_comes_back_draws_the_same(how, n_envs, tmp_path):
    buffer = filled(13, size=7 * n_envs, n_envs=n_envs, alpha=0.7, ends={4, 9}, seed=1)
    buffer.update_weight([0, 2, 5], [3.0, 0.0, 9.0])
    buffer.discard([1])
    buffer.beta = 0.8
    step(buffer, 13)
    if how == "save":
        buffer.save(tmp_path / "saved")
        again = PrioritizedReplayBuffer.load(tmp_path / "saved")
    elif how == "pickle":
        again = pickle.loads(pickle.dumps(buffer))
    else:
        state = buffer.training_state()
        json.dumps(state["meta"])
        again = filled(2, size=7 * n_envs, n_envs=n_envs, alpha=0.7)
        again.load_training_state(state)
        buffer.update_weight([3], [100.0])  # the state is a copy
        again.update_weight([3], [100.0])
    assert (again.alpha, again.beta) == (0.7, 0.8)
    assert snapshot(again) == snapshot(buffer)
    for number in (14, 15):
        (batch, rows), (same, same_rows) = buffer.sample(20), again.sample(20)
        assert rows.tolist() == same_rows.tolist()
        assert batch == same
        for each in (buffer, again):
            each.update_weight(rows, np.arange(20.0))
            step(each, number)
        assert snapshot(buffer) == snapshot(again)


def test_another_alpha_is_another_buffer():
    with pytest.raises(ValueError, match=r"alpha=1\.0, not 0\.6"):
        PrioritizedReplayBuffer(3).load_training_state(filled(3).training_state())


def test_weights_are_where_the_rows_are():
    buffer = filled(4, storage="cpu")
    batch, rows = buffer.sample(3)
    assert isinstance(rows, np.ndarray)
    assert isinstance(batch.weight, torch.Tensor)
    assert batch.weight.dtype == torch.float32
