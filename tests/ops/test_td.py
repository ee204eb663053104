import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.ops.td import (
    categorical_projection,
    categorical_td_error,
    double_q_value,
    huber_loss,
    lambda_error,
    multistep_q_error,
    multistep_value_error,
    q_error,
    quantile_midpoints,
    quantile_td_error,
    select_action,
    squared_loss,
    value_error,
)
from tests.ops.gradients import gradient_is_right, learns

T = torch.tensor
ATOMS = T([0.0, 1.0, 2.0])


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_actions_select_from_values_and_from_distributions():
    table = torch.arange(12.0).reshape(2, 3, 2)
    act = T([2, 0])
    assert select_action(table[..., 0], act).tolist() == [4, 6]
    assert select_action(table, act).tolist() == [[4, 5], [6, 7]]
    assert select_action(table[None], act[None]).tolist() == [[[4, 5], [6, 7]]]
    with pytest.raises(ValueError, match="do not select"):
        select_action(table[..., 0], act[:, None])


def test_double_q_takes_the_action_of_one_network_and_the_value_of_the_other():
    q_t = T([[1.0, 9.0], [4.0, 3.0]], requires_grad=True)
    value = double_q_value(q_t, T([[5.0, 2.0], [0.0, 1.0]]))
    assert value.tolist() == [1, 3]
    assert not value.requires_grad


# --- values


def test_the_one_step_error_of_a_value():
    # 2 + 0.9 * 3 - 1 = 3.7, and after the end 2 - 1
    error = value_error(T([1.0, 1]), T([2.0, 2]), T([0.9, 0]), T([3.0, 3]))
    assert error.tolist() == pytest.approx([3.7, 1])


def test_the_multistep_error_of_a_value():
    # 1 + 0.9 * 2 + 0.81 * 10 - 3 = 7.9;  cut after one real row: 1 + 0.9 * 10 - 3 = 7
    rew, discount = T([[1.0, 1], [2, 2]]), torch.full((2, 2), 0.9)
    mask = T([[True, True], [True, False]])
    error = multistep_value_error(T([3.0, 3]), rew, discount, T([10.0, 10]), mask)
    assert error.tolist() == pytest.approx([7.9, 7])


def test_the_error_of_td_lambda():
    # returns: 2 + 0.5 * 4 = 4;  1 + 0.5 * (0.5 * 3 + 0.5 * 4) = 2.75
    data = [T([[1.0], [2]]), T([[3.0], [4]]), T([[0.5], [0.5]]), T([[False], [False]])]
    value = T([[0.5], [1.0]])
    assert lambda_error(value, *data, 0.5)[:, 0].tolist() == pytest.approx([2.25, 3])
    mask = T([[True], [False]])
    # row 0 is the last real one: 1 + 0.5 * 3 - 0.5 = 2
    assert lambda_error(value, *data, 0.5, mask)[:, 0].tolist() == pytest.approx([2, 0])


# --- Q-values


def test_the_one_step_error_of_a_q_value():
    q = T([[1.0, 2], [3, 4]])
    # 1 + 0.9 * 5 - 2 = 3.5;  terminated: 1 - 3 = -2
    error = q_error(q, T([1, 0]), T([1.0, 1]), T([0.9, 0]), T([5.0, 5]))
    assert error.tolist() == pytest.approx([3.5, -2])


def test_the_multistep_error_of_a_q_value():
    # 1 + 0.9 * 2 + 0.81 * 10 - 2 = 8.9
    error = multistep_q_error(
        T([[7.0, 2.0]]), T([1]), T([[1.0], [2]]), T([[0.9], [0.9]]), T([10.0])
    )
    assert error.tolist() == pytest.approx([8.9])


def test_only_predictions_learn():
    row = {name: normal(3) for name in ("v_tm1", "r_t", "discount_t", "v_t")}
    assert learns(value_error, **row) == {"v_tm1"}
    q = {"q_tm1": normal(3, 2), "a_tm1": T([0, 1, 1])}
    del row["v_tm1"]
    assert learns(q_error, **q, **row) == {"q_tm1"}
    steps = {"rew": normal(2, 3), "discount": normal(2, 3), "v_last": normal(3)}
    assert learns(multistep_q_error, **q, **steps) == {"q_tm1"}
    assert learns(multistep_value_error, v_tm1=normal(3), **steps) == {"v_tm1"}
    traces = {name: normal(2, 3) for name in ("value", "rew", "value_next", "discount")}

    def error(**x):
        return lambda_error(**x, cut=torch.zeros(2, 3, dtype=torch.bool), trace_lambda=0.5)

    assert learns(error, **traces) == {"value"}


def test_the_gradients_of_errors_are_right():
    act, r, discount, v = T([0, 1, 1]), normal(3), normal(3), normal(3)
    assert gradient_is_right(lambda q: q_error(q, act, r, discount, v), normal(3, 2))
    assert gradient_is_right(lambda x: value_error(x, r, discount, v), normal(3))
    rew, discounts, mask = normal(4, 3), normal(4, 3), normal(4, 3) > -1
    assert gradient_is_right(
        lambda q: multistep_q_error(q, act, rew, discounts, v, mask), normal(3, 2)
    )
    assert gradient_is_right(lambda x: multistep_value_error(x, rew, discounts, v, mask), normal(3))
    assert gradient_is_right(
        lambda x: lambda_error(x, rew, rew, discounts, ~mask, 0.5, mask), normal(4, 3)
    )


# --- distributions of the return


def test_moved_atoms_are_shared_between_their_neighbours():
    # 0.5, 1.5 and 2.5 (clipped to 2):  0.2 / 2 | 0.2 / 2 + 0.3 / 2 | 0.3 / 2 + 0.5
    prob = categorical_projection(T([[0.2, 0.3, 0.5]]), T([0.5]), T([1.0]), ATOMS)
    assert prob[0].tolist() == pytest.approx([0.1, 0.25, 0.65])


def test_atoms_that_fall_on_atoms_keep_their_mass():
    prob = T([[0.2, 0.3, 0.5]])
    assert categorical_projection(prob, T([0.0]), T([1.0]), ATOMS).tolist() == prob.tolist()
    # terminated: everything lies on the reward
    end = categorical_projection(prob, T([1.0]), T([0.0]), ATOMS)
    assert end[0].tolist() == pytest.approx([0, 1, 0])
    assert categorical_projection(prob, T([-9.0]), T([1.0]), ATOMS)[0].tolist() == pytest.approx(
        [1, 0, 0]
    )


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), r=st.floats(-30, 30), discount=st.floats(0, 1))
def test_a_projection_is_a_distribution_and_keeps_the_mean_within_the_support(seed, r, discount):
    generator = torch.Generator().manual_seed(seed)
    prob = torch.rand(1, 51, generator=generator, dtype=torch.float64).softmax(-1)
    support = torch.linspace(-10, 10, 51, dtype=torch.float64)
    result = categorical_projection(
        prob, torch.full_like(prob[:, 0], r), torch.full_like(prob[:, 0], discount), support
    )
    assert (result >= 0).all()
    assert result.sum() == pytest.approx(1)
    mean = (prob * (r + discount * support).clamp(-10, 10)).sum()
    assert (result * support).sum() == pytest.approx(mean.item(), abs=1e-9)


def test_the_error_of_c51_is_a_cross_entropy():
    log_prob = T([[0.5, 0.25, 0.25]]).log()
    error = categorical_td_error(log_prob, T([0.5]), T([1.0]), T([[0.2, 0.3, 0.5]]), ATOMS)
    # target 0.1, 0.25, 0.65:  0.1 * ln 2 + 0.9 * ln 4
    assert error.tolist() == pytest.approx([0.1 * math.log(2) + 0.9 * math.log(4)])


def test_c51_learns_only_its_prediction():
    rows = {
        "log_prob_tm1": normal(2, 3).log_softmax(-1),
        "r_t": normal(2),
        "discount_t": normal(2).sigmoid(),
        "prob_t": normal(2, 3).softmax(-1),
    }
    support = ATOMS.double()
    assert learns(lambda **x: categorical_td_error(**x, support=support), **rows) == {
        "log_prob_tm1"
    }
    targets = list(rows.values())[1:]
    assert gradient_is_right(
        lambda x: categorical_td_error(x.log_softmax(-1), *targets, support), normal(2, 3)
    )


def quantile(quantile_tm1, tau, r, discount, quantile_t, kappa=1.0):
    return quantile_td_error(
        T([quantile_tm1]), T(tau), T([r]), T([discount]), T([quantile_t]), kappa
    ).item()


def test_the_quantile_huber_loss():
    # errors 1 - 0 and 1 - 2; Huber 0.5 each, tilted by 0.25 and |0.75 - 1|
    assert quantile([0.0, 2], [0.25, 0.75], 1.0, 0.0, [7.0]) == pytest.approx(0.25)
    # beyond kappa a line: (1 - 0.25) * 0.25 each
    assert quantile([0.0, 2], [0.25, 0.75], 1.0, 0.0, [7.0], 0.5) == pytest.approx(0.375)
    # without a square: 1 * 0.25 each
    assert quantile([0.0, 2], [0.25, 0.75], 1.0, 0.0, [7.0], 0.0) == pytest.approx(0.5)


def test_quantiles_of_the_target_are_averaged():
    # errors 1 and 3: Huber 0.5 and 2.5, tilted by 0.5: (0.25 + 1.25) / 2
    assert quantile([0.0], [0.5], 0.0, 1.0, [1.0, 3.0]) == pytest.approx(0.75)


def test_fractions_may_differ_by_row():
    rows, tau = normal(2, 3), normal(2, 3).sigmoid()
    whole = quantile_td_error(rows, tau, normal(2), normal(2), normal(2, 4))
    each = [
        quantile_td_error(
            rows[i : i + 1], tau[i], normal(2)[i : i + 1], normal(2)[i : i + 1], normal(2, 4)[[i]]
        )
        for i in range(2)
    ]
    torch.testing.assert_close(whole, torch.cat(each))


def test_quantile_regression_finds_the_quantiles():
    # Of 0, 1, ... 99 the middles of four equal parts lie at 12, 37, 62 and 87.
    target = torch.arange(100.0)[None]
    guess = torch.zeros(1, 4, requires_grad=True)
    tau = quantile_midpoints(4, guess)
    assert tau.tolist() == [0.125, 0.375, 0.625, 0.875]
    optimizer = torch.optim.SGD([guess], lr=20.0)
    for _ in range(300):
        optimizer.zero_grad()
        quantile_td_error(guess, tau, T([0.0]), T([1.0]), target).sum().backward()
        optimizer.step()
    assert guess.tolist()[0] == pytest.approx([12, 37, 62, 87], abs=1.0)


def test_quantile_errors_learn_only_their_prediction():
    rows = {
        "quantile_tm1": normal(2, 3),
        "tau_tm1": normal(2, 3).sigmoid(),
        "r_t": normal(2) + 0.1,
        "discount_t": normal(2).sigmoid(),
        "quantile_t": normal(2, 4),
    }
    assert learns(quantile_td_error, **rows) == {"quantile_tm1"}
    targets = list(rows.values())[1:]
    for kappa in (0.0, 0.3, 1.0):
        assert gradient_is_right(lambda x, k=kappa: quantile_td_error(x, *targets, k), normal(2, 3))


# --- losses


def test_the_squared_loss():
    error = T([1.0, -2.0])
    assert squared_loss(error) == 1.25  # 0.5 * (1 + 4) / 2
    assert squared_loss(error, T([1.0, 0.5])) == 0.75  # 0.5 * (1 + 2) / 2
    assert squared_loss(error, mask=T([True, False])) == 0.5


def test_the_huber_loss():
    error = T([0.5, -3.0])
    target = T([10.0, 20.0])
    value = target + error
    assert huber_loss(value, target) == 1.3125  # (0.5 * 0.25 + 3 - 0.5) / 2
    assert huber_loss(value, target, 2.0) == 2.0625  # (0.125 + 2 * (3 - 1)) / 2
    assert huber_loss(value, target, weight=T([2.0, 0.0])) == 0.125  # 0.25 / 2
    assert huber_loss(value, target, mask=T([False, True])) == 2.5


def test_the_gradients_of_losses_are_right():
    options = {"weight": normal(3), "mask": T([True, False, True])}
    error = T([0.5, 2.0, -3.0])
    assert gradient_is_right(lambda x: squared_loss(x, **options), error)
    assert gradient_is_right(lambda x: huber_loss(x, torch.zeros_like(x), **options), error)


# --- shapes


B, COLUMN = torch.zeros(3), torch.zeros(3, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: value_error(B, B, B, COLUMN),
        lambda: value_error(COLUMN, B, B, B),
        lambda: q_error(torch.zeros(3, 2), T([0, 0, 0]), COLUMN, B, B),
        lambda: q_error(torch.zeros(3, 2), T([[0], [0], [0]]), B, B, B),
        lambda: multistep_q_error(
            torch.zeros(3, 2), T([0, 0, 0]), torch.zeros(2, 3), torch.zeros(2, 3), COLUMN
        ),
        lambda: multistep_value_error(B, torch.zeros(2, 3), torch.zeros(2, 1), B),
        lambda: lambda_error(COLUMN, *[torch.zeros(3, 2)] * 3, torch.zeros(3, 2) > 0, 0.5),
        lambda: categorical_projection(torch.zeros(3, 3), COLUMN, COLUMN, ATOMS),
        lambda: categorical_projection(torch.zeros(3, 3), B[:1], B[:1], ATOMS),
        lambda: categorical_projection(torch.zeros(3, 2), B, B, ATOMS),
        lambda: categorical_td_error(torch.zeros(1, 3), B, B, torch.zeros(3, 3), ATOMS),
        lambda: quantile_td_error(torch.zeros(3, 2), B[:2], COLUMN, B, torch.zeros(3, 2)),
        lambda: quantile_td_error(torch.zeros(1, 2), B[:2], B, B, torch.zeros(3, 2)),
        lambda: quantile_td_error(torch.zeros(3, 2), COLUMN, B, B, torch.zeros(3, 2)),
        lambda: double_q_value(torch.zeros(3, 2), torch.zeros(3, 1)),
        lambda: squared_loss(B, COLUMN),
        lambda: huber_loss(B, COLUMN),
        lambda: huber_loss(B, B, mask=COLUMN > 0),
    ],
)
def test_shapes_that_would_broadcast_are_refused(call):
    with pytest.raises(ValueError, match=r"shape|axes"):
        call()
