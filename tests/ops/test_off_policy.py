import math

import pytest
import torch

from guerdon.ops.off_policy import importance_weights, upgo_return, vtrace
from guerdon.ops.returns import discounted_sum, generalized_advantage
from tests.ops.gradients import learns

T = torch.tensor


def column(*values):
    return T(values)[:, None]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_importance_weights_are_ratios_of_probabilities():
    log_prob, behaviour = T([0.6, 0.1]).log(), T([0.3, 0.2]).log()
    assert importance_weights(log_prob, behaviour).tolist() == pytest.approx([2, 0.5])
    assert learns(importance_weights, log_prob=log_prob, log_prob_behaviour=behaviour) == set()
    with pytest.raises(ValueError, match="same shape"):
        importance_weights(log_prob, behaviour[:, None])


# --- V-trace


def trace(cut=(False, False), mask=None, **options):
    target, advantage = vtrace(
        column(1.0, 2.0),
        column(0.5, 1.0),
        column(1.0, 2.0),
        column(0.5, 0.5),
        column(*cut),
        column(2.0, 0.5),
        mask=None if mask is None else column(*mask),
        **options,
    )
    return target[:, 0].tolist(), advantage[:, 0].tolist()


def test_vtrace_of_two_steps():
    # weights 1 (clipped) and 0.5; errors 1 * (1 + 0.5 - 0.5) = 1 and 0.5 * (2 + 1 - 1) = 1
    # corrections 1 and 1 + 0.5 * 1 * 1 = 1.5, on top of the values 1 and 0.5
    # advantages 0.5 * (2 + 0.5 * 2 - 1) = 1 and 1 * (1 + 0.5 * 2 - 0.5) = 1.5
    assert trace() == ([2, 2], [1.5, 1])


def test_vtrace_does_not_look_past_a_cut_but_bootstraps():
    # row 0: correction 1; advantage 1 + 0.5 * 1 - 0.5 = 1
    assert trace(cut=(True, False)) == ([1.5, 2], [1, 1])


def test_rows_that_are_no_data_cut_the_trace_and_count_nothing():
    assert trace(mask=(True, False)) == ([1.5, 1], [1, 0])
    assert trace(mask=(False, True)) == ([0.5, 2], [0, 1])


def test_each_bound_of_vtrace_bounds_its_own_weight():
    # rho up to 2: error 2 in row 0, correction 2 + 0.5 * 1 * 1
    assert trace(rho_clip=2.0) == ([3, 2], [1.5, 1])
    # traces up to 2: correction 1 + 0.5 * 2 * 1
    assert trace(trace_clip=2.0) == ([2.5, 2], [1.5, 1])
    assert trace(advantage_rho_clip=2.0) == ([2, 2], [3, 1])
    # lambda 0.5: correction 1 + 0.25 * 1
    assert trace(trace_lambda=0.5) == ([1.75, 2], [1.5, 1])


def test_vtrace_on_policy_is_the_discounted_return():
    rew, value, last = normal(6, 2), normal(6, 2, seed=1), normal(1, 2, seed=2)
    discount = torch.full_like(rew, 0.9)
    cut = torch.zeros_like(rew, dtype=torch.bool)
    value_next = torch.cat((value[1:], last))
    target, advantage = vtrace(rew, value, value_next, discount, cut, torch.ones_like(rew))
    torch.testing.assert_close(target, discounted_sum(rew, discount, last[0]))
    torch.testing.assert_close(
        advantage, generalized_advantage(rew, value, value_next, discount, cut, 1.0)
    )


# --- UPGO


def upgo(cut=(False, False, False), mask=None):
    result = upgo_return(
        column(1.0, 1.0, 1.0),
        column(0.0, 5.0, 0.0),
        column(5.0, 0.0, 2.0),
        column(1.0, 1.0, 1.0),
        column(*cut),
        None if mask is None else column(*mask),
    )
    return result[:, 0].tolist()


def test_the_upgoing_return_follows_what_went_well():
    # row 2: 1 + 2 = 3; row 2 went well (3 >= 0), so row 1: 1 + 3 = 4;
    # row 1 went badly (1 + 0 < 5), so row 0 takes the value: 1 + 5 = 6
    assert upgo() == [6, 4, 3]


def test_the_upgoing_return_does_not_look_past_a_cut():
    assert upgo(cut=(False, True, False)) == [6, 1, 3]
    assert upgo(mask=(True, True, False)) == [6, 1, 0]


def test_targets_carry_no_gradient():
    rows = {name: normal(3, 2, seed=i) for i, name in enumerate("abcde")}
    cut = torch.zeros(3, 2, dtype=torch.bool)
    assert learns(lambda a, b, c, d, e: vtrace(a, b, c, d, cut, e).target, **rows) == set()
    assert learns(lambda a, b, c, d, e: vtrace(a, b, c, d, cut, e).advantage, **rows) == set()
    del rows["e"]
    assert learns(lambda a, b, c, d: upgo_return(a, b, c, d, cut), **rows) == set()


@pytest.mark.parametrize("position", range(6))
def test_shapes_that_would_broadcast_are_refused(position):
    rows = [torch.zeros(3, 2)] * 4 + [torch.zeros(3, 2, dtype=torch.bool), torch.zeros(3, 2)]
    rows[position] = rows[position][:, :1]
    with pytest.raises(ValueError, match="same shape"):
        vtrace(*rows)
    if position < 5:
        with pytest.raises(ValueError, match="same shape"):
            upgo_return(*rows[:5])


def test_an_unlikely_action_counts_little():
    weight = importance_weights(T([-50.0]), T([-1.0]))
    assert weight.item() == pytest.approx(math.exp(-49))
