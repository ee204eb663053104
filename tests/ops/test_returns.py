import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.ops.returns import backward_scan, generalized_advantage, multistep_return, vtrace
from tests.gradients import gradient_is_right
from tests.rounding import assert_close

KINDS = {
    "compiled": torch.as_tensor,
    # Autograd has to follow: the doubling that a device gets.
    "doubling": lambda x: torch.as_tensor(x).requires_grad_(np.asarray(x).dtype.kind == "f"),
}
if torch.cuda.is_available():
    KINDS["cuda"] = lambda x: torch.as_tensor(x).cuda()


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def column(*values, dtype=np.float32):
    return np.array(values, dtype)[:, None]


def flat(x):
    return x.detach().cpu().numpy().tolist()


def approx(*values):
    return pytest.approx(list(values), rel=1e-5)


def advantage(kind, value_next=(1, 1.5, 2), discount=(0.9, 0.9, 0.9), cut=(0, 0, 0), mask=None):
    result = generalized_advantage(
        kind(column(1, 2, 3)),
        kind(column(0.5, 1, 1.5)),
        kind(column(*value_next)),
        kind(column(*discount)),
        kind(column(*cut, dtype=np.bool_)),
        0.5,
        None if mask is None else kind(column(*mask, dtype=np.bool_)),
    )
    return flat(result[:, 0])


# --- generalized advantage


def test_advantages_of_an_open_episode(kind):
    # deltas: 1 + 0.9 * 1 - 0.5 = 1.4;  2 + 0.9 * 1.5 - 1 = 2.35;  3 + 0.9 * 2 - 1.5 = 3.3
    # traces: 2.35 + 0.45 * 3.3 = 3.835;  1.4 + 0.45 * 3.835 = 3.12575
    assert advantage(kind) == approx(3.12575, 3.835, 3.3)


def test_a_terminated_episode_has_no_value_after_it(kind):
    # row 1: 2 - 1 = 1;  row 0: 1.4 + 0.45 * 1 = 1.85
    assert advantage(kind, discount=(0.9, 0, 0.9), cut=(0, 1, 0)) == approx(1.85, 1, 3.3)


def test_a_truncated_episode_bootstraps_from_its_last_observation(kind):
    # row 1: 2 + 0.9 * 4 - 1 = 4.6;  row 0: 1.4 + 0.45 * 4.6 = 3.47
    assert advantage(kind, value_next=(1, 4, 2), cut=(0, 1, 0)) == approx(3.47, 4.6, 3.3)


def test_rows_that_are_no_data_get_zero_and_cut_the_trace(kind):
    assert advantage(kind, mask=(1, 0, 1)) == approx(1.4, 0, 3.3)


def test_what_stands_in_rows_that_are_no_data_does_not_matter(kind):
    assert advantage(kind, value_next=(1, np.nan, 2), mask=(1, 0, 1)) == approx(1.4, 0, 3.3)


def test_lambda_zero_gives_one_step_errors_and_lambda_one_the_discounted_sum(kind):
    rew, value, value_next, discount, cut, _ = rollout(3, 9, 4)
    arguments = [kind(x) for x in (rew, value, value_next, discount, cut)]
    one_step = generalized_advantage(*arguments, 0.0)
    assert_close(flat(one_step), rew + discount * value_next - value, atol=1e-5)
    # With lambda = 1 and values that follow each other, values in between cancel out.
    value_next = np.concatenate((value[1:], value_next[-1:]))
    none = np.zeros_like(cut)
    arguments = [kind(x) for x in (rew, value, value_next, discount, none)]
    ended = rew.copy()
    ended[-1] += discount[-1] * value_next[-1]
    total = backward_scan(kind(ended), kind(discount))
    assert_close(
        flat(generalized_advantage(*arguments, 1.0)), np.array(flat(total)) - value, atol=1e-4
    )


def rollout(seed, length, width, dtype=np.float32):
    rng = np.random.default_rng(seed)
    rew, value, value_next = rng.normal(size=(3, length, width)).astype(dtype)
    terminated = rng.random((length, width)) < 0.1
    discount = (0.99 * ~terminated).astype(dtype)
    cut = terminated | (rng.random((length, width)) < 0.1)
    return rew, value, value_next, discount, cut, rng.random((length, width)) < 0.8


def plain_advantage(rew, value, value_next, discount, cut, gae_lambda, mask):
    result = np.zeros(rew.shape)
    for b in range(rew.shape[1]):
        later = 0.0
        for t in reversed(range(len(rew))):
            delta = rew[t, b] + discount[t, b] * value_next[t, b] - value[t, b]
            trace = 0.0 if cut[t, b] else gae_lambda * discount[t, b]
            later = delta + trace * later if mask[t, b] else 0.0
            result[t, b] = later
    return result


sizes = st.tuples(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 4))


@settings(max_examples=40)
@given(size=sizes, gae_lambda=st.floats(0, 1))
def test_all_kinds_give_the_advantages_of_a_plain_loop(size, gae_lambda):
    *data, mask = rollout(*size, dtype=np.float64)
    expected = plain_advantage(*data, gae_lambda, mask)
    for kind in KINDS.values():
        result = generalized_advantage(*map(kind, data), gae_lambda, kind(mask))
        assert_close(flat(result), expected)


def plain_multistep(rew, discount, mask):
    returns, discounts, last = np.zeros((3, rew.shape[1]))
    for b in range(rew.shape[1]):
        product = 1.0
        for k in range(len(rew)):
            if mask is not None and not mask[k, b]:
                break
            returns[b] += product * rew[k, b]
            product *= discount[k, b]
            discounts[b], last[b] = product, k
    return returns, discounts, last


@settings(max_examples=40)
@given(size=sizes, masked=st.booleans())
def test_all_kinds_give_the_multistep_return_of_a_plain_loop(size, masked):
    rew, _, _, discount, _, mask = rollout(*size, dtype=np.float64)
    mask = mask if masked else None
    expected = plain_multistep(rew, discount, mask)
    for kind in KINDS.values():
        result = multistep_return(kind(rew), kind(discount), None if mask is None else kind(mask))
        for x, y in zip(result, expected, strict=True):
            assert_close(flat(x), y)


def test_layout_and_dtype_do_not_change_the_advantage():
    data = [torch.as_tensor(x) for x in rollout(0, 12, 5)]
    expected = generalized_advantage(*data[:5], 0.95, data[5])
    strided = [x.T.contiguous().T for x in data]
    assert torch.equal(generalized_advantage(*strided[:5], 0.95, strided[5]), expected)
    assert expected.dtype == torch.float32


def test_a_rollout_without_rows_has_no_advantages(kind):
    *data, mask = map(kind, rollout(0, 0, 3))
    assert generalized_advantage(*data, 0.9, mask).shape == (0, 3)


def test_half_precision_tensors_take_the_path_that_can_read_them():
    rew, value, value_next, discount, cut, _ = map(torch.as_tensor, rollout(0, 6, 2))
    exact = generalized_advantage(rew, value, value_next, discount, cut, 0.95)
    rough = generalized_advantage(
        rew.bfloat16(), value.bfloat16(), value_next.bfloat16(), discount.bfloat16(), cut, 0.95
    )
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.1)


def test_the_gradients_of_returns_are_right():
    rew, value, value_next, discount, cut, mask = map(torch.as_tensor, rollout(1, 5, 2))
    assert gradient_is_right(
        lambda *x: generalized_advantage(*x, cut, 0.9, mask), rew, value, value_next, discount
    )
    assert gradient_is_right(
        lambda *x: multistep_return(*x, mask)[:2], rew, discount.clamp(min=0.5)
    )


def test_arguments_are_not_changed(kind):
    data = rollout(0, 6, 3)
    copies = [x.copy() for x in data]
    generalized_advantage(*map(kind, data[:5]), 0.9, kind(data[5]))
    multistep_return(kind(data[0]), kind(data[3]), kind(data[5]))
    for x, y in zip(data, copies, strict=True):
        np.testing.assert_array_equal(x, y)


# --- discounted returns


def test_discounted_sums(kind):
    rew, discount = kind(column(1, 2, 3)), kind(column(0.5, 0.5, 0.5))
    # 3;  2 + 0.5 * 3 = 3.5;  1 + 0.5 * 3.5 = 2.75
    assert flat(backward_scan(rew, discount)[:, 0]) == approx(2.75, 3.5, 3)


# --- n steps


def multistep(kind, discount=(0.9, 0.9, 0.9), mask=None):
    mask = None if mask is None else kind(column(*mask, dtype=np.bool_))
    result = multistep_return(kind(column(1, 2, 3)), kind(column(*discount)), mask)
    assert result[2].dtype == torch.int64
    return [flat(x)[0] for x in result]


def test_three_steps_without_an_end(kind):
    # 1 + 0.9 * 2 + 0.81 * 3 = 5.23, and 0.9^3 = 0.729
    assert multistep(kind) == approx(5.23, 0.729, 2)


def test_nothing_counts_after_the_episode_terminated(kind):
    assert multistep(kind, discount=(0.9, 0, 0.9)) == approx(2.8, 0, 2)


def test_a_truncated_window_bootstraps_from_its_last_real_row(kind):
    assert multistep(kind, mask=(1, 1, 0)) == approx(2.8, 0.81, 1)


def test_a_window_ends_before_its_first_row_that_is_no_data(kind):
    assert multistep(kind, mask=(1, 0, 1)) == approx(1, 0.9, 0)
    assert multistep(kind, mask=(0, 1, 1)) == approx(0, 0, 0)


# --- shapes


@pytest.mark.parametrize("position", range(6))
def test_a_shape_that_would_broadcast_is_refused(kind, position):
    rew, value, value_next, discount, cut, mask = map(kind, rollout(0, 4, 3))
    data = [rew, value, value_next, discount, cut, mask]
    data[position] = data[position][:, :1]
    with pytest.raises(ValueError, match="same shape"):
        generalized_advantage(*data[:5], 0.9, data[5])


def test_flat_rows_are_refused(kind):
    rew, _, _, discount, _, mask = map(kind, rollout(0, 4, 3))
    with pytest.raises(ValueError, match="2 axes"):
        multistep_return(rew[0], discount[0])
    with pytest.raises(ValueError, match="same shape"):
        multistep_return(rew, discount, mask[:1])
    with pytest.raises(ValueError, match="same shape"):
        backward_scan(rew, discount[:1])


# --- V-trace


def traced(kind, rho=(2.0, 0.5, 1.0), discount=(0.9, 0.9, 0.9), cut=(0, 0, 0), **options):
    """V-trace of three rows, with the importance weights `rho`."""
    mask = options.pop("mask", None)
    found = vtrace(
        kind(column(1, 2, 3)),
        kind(column(0.5, 1, 1.5)),
        kind(column(1, 1.5, 2)),
        kind(column(*discount)),
        kind(column(*cut, dtype=np.bool_)),
        kind(column(*np.log(rho))),
        mask=None if mask is None else kind(column(*mask, dtype=np.bool_)),
        **options,
    )
    return [flat(each[:, 0]) for each in found]


def test_vtrace_of_an_open_episode(kind):
    # Weights are clipped to 1, 0.5, 1; TD errors are those of the advantages above.
    # errors: 1 * 3.3 = 3.3;  0.5 * 2.35 + 0.9 * 0.5 * 3.3 = 2.66;  1.4 + 0.9 * 1 * 2.66 = 3.794
    # targets: 0.5 + 3.794, 1 + 2.66, 1.5 + 3.3
    # The advantages are 1 + 0.9 * 3.66 - 0.5;  2 + 0.9 * 4.8 - 1;  3 + 0.9 * 2 - 1.5
    targets, advantages, weights = traced(kind)
    assert targets == approx(4.294, 3.66, 4.8)
    assert advantages == approx(3.794, 5.32, 3.3)
    assert weights == approx(1, 0.5, 1)


def test_limits_of_the_weights_of_vtrace(kind):
    # rho is clipped to 2 and 0.5, c to 1.5 and 0.5, and traces decay by 0.8:
    # errors: 3.3;  1.175 + 0.9 * 0.8 * 0.5 * 3.3 = 2.363;  2 * 1.4 + 0.9 * 0.8 * 1.5 * 2.363 = ...
    targets, advantages, weights = traced(kind, rho_clip=3.0, c_clip=1.5, trace_lambda=0.8)
    first = 2.8 + 1.08 * 2.363
    assert targets == approx(0.5 + first, 3.363, 4.8)
    assert advantages == approx(1 + 0.9 * 3.363 - 0.5, 5.32, 3.3)
    assert weights == approx(2, 0.5, 1)


def test_vtrace_ends_at_the_end_of_an_episode(kind):
    # Row 1 terminated: its error is 0.5 * (2 - 1); row 0: 1.4 + 0.9 * 0.5.
    targets, advantages, _ = traced(kind, discount=(0.9, 0, 0.9), cut=(0, 1, 0))
    assert targets == approx(0.5 + 1.85, 1.5, 4.8)
    assert advantages == approx(1 + 0.9 * 1.5 - 0.5, 1, 3.3)
    # Truncated: it bootstraps from the value of its own next observation.
    targets, advantages, _ = traced(kind, cut=(0, 1, 0))
    assert targets == approx(0.5 + 1.4 + 0.9 * 1.175, 1 + 1.175, 4.8)
    assert advantages == approx(1 + 0.9 * 2.175 - 0.5, 2.35, 3.3)


def test_rows_that_are_no_transitions_have_no_vtrace(kind):
    targets, advantages, weights = traced(kind, mask=(1, 0, 1), cut=(1, 1, 1))
    assert targets == approx(0.5 + 1.4, 0, 4.8)
    assert advantages == approx(1.4, 0, 3.3)
    assert weights == approx(1, 0, 1)


def test_on_policy_vtrace_is_the_discounted_return():
    generator = np.random.default_rng(0)
    r, now, after = (
        torch.tensor(generator.normal(size=(6, 3)), dtype=torch.float32) for _ in range(3)
    )
    after[:-1] = now[1:]
    discount, cut = torch.full((6, 3), 0.9), torch.zeros(6, 3, dtype=torch.bool)
    targets, advantages, weights = vtrace(r, now, after, discount, cut, torch.zeros(6, 3))
    expected = generalized_advantage(r, now, after, discount, cut, 1.0)
    torch.testing.assert_close(targets - now, expected)
    torch.testing.assert_close(advantages, expected)
    assert (weights == 1).all()
