import numpy as np
import pytest
import torch

from guerdon.data import Batch
from guerdon.policy import create_policy
from guerdon.policy.advantages import with_returns
from tests.policy.cases import CASES, spaces_of

CPU = torch.device("cpu")


@pytest.fixture
def policy():
    return create_policy({"type": "dqn", "gamma": 0.5}, *spaces_of(CASES["dqn"].env))


def numbers(*values, dtype=np.float32):
    return np.array(values, dtype)


def test_rows_are_kept_as_they_are(policy):
    batch = Batch(
        obs=numbers([1.0], [2.0]), act=numbers(0, 1, dtype=np.int64), rew=numbers(3.0, 4.0),
        terminated=numbers(True, False, dtype=bool), obs_next=numbers([5.0], [6.0]),
    )  # fmt: skip
    rows = with_returns(policy, batch.to_device(CPU))
    assert rows.obs.tolist() == [[1.0], [2.0]]
    assert rows.act.tolist() == [0, 1]
    assert rows.returns.tolist() == [3.0, 4.0]
    assert rows.discount.tolist() == [0.0, 0.5]
    assert rows.obs_next.tolist() == [[5.0], [6.0]]
    assert "weight" not in rows


def segments(**changes):
    """Three steps of four segments: whole; terminated; truncated after two; a single row."""
    mask = numbers([1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], dtype=bool)
    fields = {
        "obs": np.arange(12, dtype=np.float32).reshape(3, 4, 1),
        "act": np.arange(12).reshape(3, 4),
        # A segment repeats its last row, whose numbers are not to be counted twice.
        "rew": numbers([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 4.0], [100.0, 20.0, 30.0, 4.0]),
        "terminated": numbers([0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], dtype=bool),
        "obs_next": 100 + np.arange(12, dtype=np.float32).reshape(3, 4, 1),
        "mask": mask,
    }
    return Batch(**{**fields, **changes}).to_device(CPU)


def test_segments_become_rows(policy):
    rows = with_returns(policy, segments())
    assert rows.obs.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert rows.act.tolist() == [0, 1, 2, 3]
    assert rows.returns.tolist() == [1 + 5 + 25, 2 + 10, 3 + 15, 4.0]
    assert rows.discount.tolist() == [0.125, 0.0, 0.25, 0.5]
    assert rows.obs_next.flatten().tolist() == [108.0, 105.0, 106.0, 103.0]


def test_nothing_that_is_masked_counts(policy):
    clean, dirty = segments(), segments()
    for key in ("rew", "obs", "obs_next"):
        dirty[key][~dirty.mask] = torch.nan
    one, other = with_returns(policy, clean), with_returns(policy, dirty)
    for key in ("returns", "discount", "obs", "obs_next"):
        assert one[key].tolist() == other[key].tolist(), key


def test_nested_observations_are_taken_part_by_part(policy):
    obs = np.arange(12, dtype=np.float32).reshape(3, 4, 1)
    batch = segments(obs=Batch(a=obs, b=obs * 2), obs_next=Batch(a=obs, b=obs * 2))
    rows = with_returns(policy, batch)
    assert rows.obs["b"].flatten().tolist() == [0.0, 2.0, 4.0, 6.0]
    assert rows.obs_next["b"].flatten().tolist() == [16.0, 10.0, 12.0, 6.0]


@pytest.mark.parametrize("rew", [np.float64, np.float32, np.int64, np.float16], ids=str)
def test_rewards_of_any_type_become_single_precision(policy, rew):
    whole = segments(rew=segments().rew.numpy().astype(rew))
    for batch in (whole[0], whole):
        returns = with_returns(policy, batch).returns
        assert returns.dtype == torch.float32
        assert returns[-1] == 4.0


def test_weights_pass_through(policy):
    rows = with_returns(policy, segments(weight=numbers(0.1, 0.2, 0.3, 0.4)))
    assert rows.weight.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
