import numpy as np
import pytest
import torch

from guerdon.compat.di_engine import items
from guerdon.reward.transitions import from_items
from tests.reward.cases import transitions


def test_a_batch_becomes_the_guides_list():
    rows = transitions(3)
    data = items.from_batch(rows)
    assert [sorted(item) for item in data] == [["action", "done", "next_obs", "obs", "reward"]] * 3
    assert all(isinstance(value, torch.Tensor) for item in data for value in item.values())
    np.testing.assert_array_equal(from_items(data).obs, rows.obs)
    assert from_items(data).act.tolist() == rows.act.tolist()
    assert {item["action"].shape for item in data} == {item["reward"].shape for item in data}
    assert data[1]["reward"].tolist() == [2.0]
    assert data[1]["done"].shape == ()
    data[0]["obs"] += 1.0
    assert rows.obs[0].tolist() == [0.0, 0.0]


def test_columns_and_rows_are_inverse():
    data = [{"obs": {"a": torch.full((2,), float(i))}, "done": torch.tensor(i > 0)} for i in (0, 1)]
    held = items.columns(data)
    assert held.obs.a.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    again = items.rows(held)
    assert [item["done"].item() for item in again] == [False, True]
    assert again[1]["obs"]["a"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "data",
    [
        [],
        [1.0],
        {"obs": torch.ones(1)},
        [{"obs": 1.0}, {"obs": 2.0}],
        [{"obs": torch.ones(2)}, {"obs": torch.ones(3)}],
        [{"obs": torch.ones(2)}, {"obs": torch.ones(2).double()}],
        [{"obs": torch.ones(2)}, {"action": torch.ones(2)}],
        [{1: torch.ones(2)}],
    ],
    ids=str,
)
def test_only_tensors_that_are_alike_have_columns(data):
    assert items.columns(data) is None
