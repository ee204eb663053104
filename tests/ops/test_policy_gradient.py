import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guerdon.ops.policy_gradient import (
    a2c_policy_loss,
    a2c_value_loss,
    approx_kl,
    clip_fraction,
    explained_variance,
    ppo_policy_loss,
    ppo_value_loss,
)
from tests.gradients import gradient_is_right, learns

T = torch.tensor
MASK = T([True, False, True, True, False])


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- PPO


def test_the_clipped_surrogate():
    ratio, advantage = T([1.5, 0.5, 1.5, 0.5]), T([1.0, 1.0, -1.0, -1.0])
    loss = ppo_policy_loss(ratio.log(), torch.zeros(4), advantage, 0.2)
    # clipped to 1.2;  0.5;  -1.5;  clipped to -0.8:  -(1.2 + 0.5 - 1.5 - 0.8) / 4
    assert loss.item() == pytest.approx(0.15)


def test_clipped_rows_learn_nothing():
    log_prob = T([1.5, 0.5, 1.5, 0.5]).log().requires_grad_()
    ppo_policy_loss(log_prob, torch.zeros(4), T([1.0, 1, -1, -1]), 0.2).backward()
    # the gradient of an open row is -ratio * advantage / 4
    assert log_prob.grad.tolist() == pytest.approx([0, -0.125, 0.375, 0])


@given(
    ratio=st.floats(0.01, 10),
    advantage=st.floats(-5, 5),
    clip_range=st.floats(0.01, 0.9),
)
def test_the_surrogate_is_that_of_the_paper(ratio, advantage, clip_range):
    clipped = min(max(ratio, 1 - clip_range), 1 + clip_range)
    expected = -min(ratio * advantage, clipped * advantage)
    log_ratio, advantage = T([[math.log(ratio)], [advantage]], dtype=torch.float64)
    loss = ppo_policy_loss(log_ratio, torch.zeros_like(log_ratio), advantage, clip_range)
    assert loss.item() == pytest.approx(expected, abs=1e-9)


def test_the_dual_clip_bounds_what_a_bad_action_can_cost():
    # ratio 5, advantage -1: -5 becomes -3;  ratio 2: -2 stays;  ratio 5, advantage 1: 1.2 stays
    loss = ppo_policy_loss(
        T([5.0, 2, 5]).log(), torch.zeros(3), T([-1.0, -1, 1]), 0.2, dual_clip=3.0
    )
    assert loss.item() == pytest.approx((3 + 2 - 1.2) / 3)


def test_the_value_loss_is_half_the_squared_error():
    assert ppo_value_loss(T([1.0, 3]), T([2.0, 1])) == 1.25  # 0.5 * (1 + 4) / 2


def test_the_clipped_value_loss_takes_the_larger_error():
    # 0 + 0.2 is 1.8 from 2 (1 is only 1 from it);  2.9 + 0.1 is not clipped
    loss = ppo_value_loss(T([1.0, 3]), T([2.0, 1]), T([0.0, 2.9]), 0.2)
    assert loss.item() == pytest.approx(0.5 * (3.24 + 4) / 2)


def test_clipping_the_value_needs_the_old_one():
    with pytest.raises(ValueError, match="needs value_old"):
        ppo_value_loss(T([1.0]), T([1.0]), clip_range=0.2)


# --- A2C


def test_the_policy_gradient():
    assert a2c_policy_loss(T([-1.0, -2]), T([2.0, 1])) == 2  # -(-2 - 2) / 2


# --- all losses


LOSSES = {
    "ppo_policy": lambda x, y, z, **k: ppo_policy_loss(x, y, z, 0.2, **k),
    "ppo_dual": lambda x, y, z, **k: ppo_policy_loss(x, y, z, 0.2, dual_clip=1.5, **k),
    "ppo_value": lambda x, y, _, **k: ppo_value_loss(x, y, **k),
    "ppo_value_clip": lambda x, y, z, **k: ppo_value_loss(x, y, z, 0.2, **k),
    "a2c_policy": lambda x, y, _, **k: a2c_policy_loss(x, y, **k),
    "a2c_value": lambda x, y, _, **k: a2c_value_loss(x, y, **k),
}


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


def rows():
    return [normal(5, seed=seed) for seed in range(3)]


def test_the_gradient_is_right(loss):
    x, y, z = rows()
    assert gradient_is_right(lambda x: loss(x, y, z), x)
    weight = y.abs()
    assert gradient_is_right(lambda x: loss(x, y, z, weight=weight, mask=MASK), x)


def test_targets_learn_nothing(loss):
    x, y, z = rows()
    assert learns(lambda x, y, z: loss(x, y, z), x=x, y=y, z=z) == {"x"}


def test_a_mask_leaves_out_rows_and_a_weight_scales_them(loss):
    x, y, z = rows()
    kept = loss(x[MASK], y[MASK], z[MASK])
    torch.testing.assert_close(loss(x, y, z, mask=MASK), kept)
    ones = torch.ones_like(x)
    torch.testing.assert_close(loss(x, y, z, weight=ones), loss(x, y, z))
    torch.testing.assert_close(loss(x, y, z, weight=MASK.double()), kept * 3 / 5)


def test_losses_take_rows_of_any_shape(loss):
    flat = loss(*rows())
    torch.testing.assert_close(loss(*(a.reshape(5, 1) for a in rows())), flat)


@pytest.mark.parametrize("position", [0, 1, "weight", "mask"])
def test_a_column_beside_rows_is_refused(loss, position):
    data, options = rows(), {}
    if isinstance(position, int):
        data[position] = data[position][:, None]
    else:
        options[position] = MASK[:, None]
    with pytest.raises(ValueError, match="same shape"):
        loss(*data, **options)


# --- metrics


def test_the_kl_estimate_is_zero_for_equal_policies_and_positive_else():
    log_ratio = T([math.log(2), 0.0])
    # ratio 2: (2 - 1) - ln 2
    expected = (1 - math.log(2)) / 2
    assert approx_kl(log_ratio, torch.zeros(2)).item() == pytest.approx(expected)
    assert approx_kl(log_ratio, torch.zeros(2), T([False, True])) == 0


def test_the_clip_fraction_counts_ratios_outside():
    log_ratio = T([1.5, 1.1, 0.5, 0.9]).log()
    assert clip_fraction(log_ratio, torch.zeros(4), 0.2) == 0.5
    assert clip_fraction(log_ratio, torch.zeros(4), 0.2, T([True, True, False, True])) == (
        pytest.approx(1 / 3)
    )


def test_explained_variance():
    returns = T([1.0, 2, 3])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(torch.zeros(3), returns) == 0
    # errors 2, 0, -2: 1 - (8 / 3) / (2 / 3) = -3
    assert explained_variance(T([-1.0, 2, 5]), returns).item() == pytest.approx(-3)
    assert explained_variance(T([1.0, 2, 99]), returns, T([True, True, False])) == 1
    assert explained_variance(returns, torch.ones(3)).isnan()


def test_metrics_keep_no_graph():
    x = torch.zeros(3, requires_grad=True)
    for metric in (approx_kl(x, x), clip_fraction(x, x, 0.2), explained_variance(x, x)):
        assert not metric.requires_grad
    for metric in (approx_kl, explained_variance):
        with pytest.raises(ValueError, match="same shape"):
            metric(x, x[:, None])
