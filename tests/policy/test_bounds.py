import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from guerdon.policy.bounds import Bounds

CPU = torch.device("cpu")


def bounds(low, high, dtype=np.float32):
    return Bounds(spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype), "sac", CPU)


def test_the_ends_and_the_middle_of_both_ranges_meet():
    made = bounds([-2.0, 10.0], [2.0, 30.0])
    units = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]])
    env = [[-2.0, 10.0], [0.0, 20.0], [2.0, 30.0], [1.0, 15.0]]
    assert made.to_env(units).tolist() == env
    assert made.to_unit(torch.tensor(env)).tolist() == units.tolist()


def test_rounding_never_leaves_the_space():
    low, high = np.float32([-0.1]), np.float32([0.3])
    space = spaces.Box(low, high)
    acts = Bounds(space, "sac", CPU).to_env(torch.linspace(-1, 1, 1001)[:, None])
    assert all(space.contains(act) for act in acts)


@given(
    st.floats(-1e3, 1e3, width=32),
    st.floats(0.125, 1e3, width=32),
    st.floats(-1, 1, width=32),
)
def test_there_and_back_is_where_one_was(low, width, unit):
    made = bounds([low], [low + width])
    there = made.to_env(torch.tensor([[unit]]))
    back = made.to_unit(torch.from_numpy(there))
    assert float(back) == pytest.approx(unit, abs=1e-6 * (1 + abs(low) / width) * 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_have_the_spaces_type(dtype):
    assert bounds([-1.0], [1.0], dtype).to_env(torch.zeros(2, 1)).dtype == dtype


def test_networks_get_single_precision_whatever_the_space():
    made = bounds([-2.0], [2.0], np.float64)
    unit = made.to_unit(torch.tensor([[1.0]], dtype=torch.float64))
    assert unit.dtype == torch.float32
    assert unit.tolist() == [[0.5]]


def test_a_dimension_with_one_action_is_zero_for_networks():
    made = bounds([-1.0, 3.0], [1.0, 3.0])
    assert made.to_env(torch.tensor([[0.5, 0.7]])).tolist() == [[0.5, 3.0]]
    assert made.to_unit(torch.tensor([[0.5, 3.0]])).tolist() == [[0.5, 0.0]]


def test_gradients_do_not_hinder():
    act = torch.zeros(1, 1, requires_grad=True)
    assert bounds([-1.0], [1.0]).to_env(act).tolist() == [[0.0]]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Box(-np.inf, np.inf, (2,), np.float32),
        spaces.Box(np.float32([0.0]), np.float32([np.inf])),
        spaces.Box(0, 5, (2,), np.int32),
        spaces.Box(-1.0, 1.0, (), np.float32),
    ],
    ids=str,
)
def test_another_space_is_refused_with_the_policys_name(space):
    with pytest.raises(ValueError, match="td3 supports real-valued Box action spaces with finite"):
        Bounds(space, "td3", CPU)
