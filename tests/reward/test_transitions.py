import numpy as np
import pytest
import torch

from guerdon.reward.transitions import from_items, with_rewards


def listed(n_rows=3):
    return [
        {
            "obs": torch.tensor([float(i), 0.5]),
            "action": torch.tensor([i % 2]),
            "reward": torch.tensor([1.0 + i]),
            "next_obs": torch.tensor([i + 1.0, 0.5]),
            "done": i == n_rows - 1,
        }
        for i in range(n_rows)
    ]


def test_the_guides_list_becomes_a_batch():
    batch = from_items(listed())
    np.testing.assert_array_equal(batch.obs, [[0, 0.5], [1, 0.5], [2, 0.5]])
    assert batch.act.tolist() == [0, 1, 0]
    assert batch.rew.tolist() == [1.0, 2.0, 3.0]
    assert batch.terminated.tolist() == [False, False, True]
    assert batch.obs_next[:, 0].tolist() == [1.0, 2.0, 3.0]


def test_observations_may_have_parts():
    data = [{"obs": {"a": np.zeros(2), "b": np.array(i)}, "action": np.array(0)} for i in range(2)]
    batch = from_items(data)
    assert batch.obs.a.shape == (2, 2)
    assert batch.obs.b.tolist() == [0, 1]
    assert batch.rew.tolist() == [0.0, 0.0]


def test_other_rewards_are_put_into_copies():
    data = listed()
    changed = with_rewards(data, np.array([7.0, 8.0, 9.0], np.float32))
    assert [float(item["reward"]) for item in data] == [1.0, 2.0, 3.0]
    assert [item["reward"].tolist() for item in changed] == [[7.0], [8.0], [9.0]]
    assert changed[0]["obs"] is data[0]["obs"]


@pytest.mark.parametrize(
    ("data", "message"),
    [([], "the list is empty"), ([{"obs": np.zeros(2)}], "has no 'action'")],
)
def test_lists_without_transitions_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        from_items(data)
