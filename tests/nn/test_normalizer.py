import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.nn import ObservationNormalizer, make_normalizer


def test_mean_and_variance_of_one_batch():
    normalizer = ObservationNormalizer((1,))
    normalizer.update(torch.tensor([[1.0], [3.0]]))
    assert (normalizer.mean.item(), normalizer.variance.item(), normalizer.count.item()) == (
        2,
        1,
        2,
    )
    torch.testing.assert_close(normalizer(torch.tensor([[4.0]])), torch.tensor([[2.0]]))


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 10))
def test_batches_merge_to_the_statistics_of_all_rows(sizes, seed):
    rows = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(seed)) * 4 + 100
    normalizer = ObservationNormalizer((3,))
    for part in rows.split(sizes):
        normalizer.update(part)
    torch.testing.assert_close(normalizer.mean, rows.double().mean(0))
    torch.testing.assert_close(normalizer.variance, rows.double().var(0, correction=0))


def test_small_differences_between_large_numbers_are_kept():
    normalizer = ObservationNormalizer((1,))
    for value in (-1.0, 1.0) * 50:
        normalizer.update(torch.tensor([[1e8 + value]], dtype=torch.float64))
    torch.testing.assert_close(normalizer.variance, torch.ones(1, dtype=torch.float64))


def test_a_batch_without_data_changes_nothing():
    normalizer = ObservationNormalizer((1,))
    normalizer.update(torch.ones(0, 1))
    assert normalizer(torch.tensor([[3.0]])).item() == 3.0


def test_values_are_clipped_at_10():
    normalizer = ObservationNormalizer((1,))
    normalizer.update(torch.tensor([[-1.0], [1.0]]))
    assert normalizer(torch.tensor([[99.0], [-99.0]])).tolist() == [[10.0], [-10.0]]


def test_calling_changes_neither_statistics_nor_observations():
    normalizer = ObservationNormalizer((2,))
    normalizer.update(torch.randn(5, 2))
    before = copy.deepcopy(normalizer.state_dict())
    obs = torch.full((3, 2), 100.0)
    normalizer(obs)
    assert obs.eq(100).all()
    assert all(torch.equal(before[key], value) for key, value in normalizer.state_dict().items())


def test_the_state_dict_holds_everything():
    first, second = ObservationNormalizer((2,)), ObservationNormalizer((2,))
    first.update(torch.randn(5, 2) * 3 + 1)
    second.load_state_dict(first.state_dict())
    more, obs = torch.randn(4, 2), torch.randn(6, 2)
    assert torch.equal(first(obs), second(obs))
    first.update(more)
    second.update(more)
    assert torch.equal(first(obs), second(obs))


def test_the_parts_of_a_dict_are_normalised_where_they_are_numbers():
    space = spaces.Dict(
        {
            "kind": spaces.Discrete(3),
            "speed": spaces.Box(-1, 1, (1,)),
            "view": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        }
    )
    normalizer = make_normalizer(space)
    obs = {
        "kind": torch.tensor([0, 2]),
        "speed": torch.tensor([[1.0], [3.0]]),
        "view": torch.zeros(2, 8, 8, 3, dtype=torch.uint8),
    }
    normalizer.update(obs)
    result = normalizer(obs)
    torch.testing.assert_close(result["speed"], torch.tensor([[-1.0], [1.0]]))
    assert result["kind"] is obs["kind"]
    assert result["view"] is obs["view"]


def test_many_rows_are_merged_part_by_part(monkeypatch):
    rows = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)) * 4 + 100
    whole, parts = ObservationNormalizer((3,)), ObservationNormalizer((3,))
    whole.update(rows)
    monkeypatch.setattr("guerdon.nn.normalizer._NUMBERS", 7)  # two rows at a time
    parts.update(rows)
    torch.testing.assert_close(parts.state_dict(), whole.state_dict())


def test_a_steady_normalizer_keeps_its_offset_and_follows_larger_variances_only():
    normalizer = ObservationNormalizer((1,), steady_after=4)
    normalizer.update(torch.tensor([[1.0], [3.0]]))
    normalizer.update(torch.tensor([[-1.0], [5.0]]))  # mean 2, variance (1 + 1 + 9 + 9) / 4 = 5
    shown = torch.tensor([[2.0 + 5**0.5]])
    torch.testing.assert_close(normalizer(shown), torch.ones(1, 1))

    normalizer.update(torch.tensor([[2.0]] * 4))  # variance 2.5
    torch.testing.assert_close(normalizer(shown), torch.ones(1, 1))

    normalizer.update(torch.tensor([[22.0]] * 8))  # mean 12, variance 101.25
    torch.testing.assert_close(normalizer.mean, torch.tensor([12.0], dtype=torch.float64))
    shown = torch.tensor([[2.0 + 101.25**0.5]])
    torch.testing.assert_close(normalizer(shown), torch.ones(1, 1))


def test_pixels_are_normalised_each_by_itself_where_that_is_asked_for():
    normalizer = make_normalizer(spaces.Box(0, 255, (1, 8, 8), np.uint8), images=True)
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    images[1, 0, 0, 0] = 200  # the only pixel that changes
    normalizer.update(images)
    result = normalizer(images)
    assert result[:, 0, 0, 0].tolist() == pytest.approx([-1.0, 1.0])
    assert not result[..., 1:].any()


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(0, 255, (8, 8, 3), np.uint8)])
def test_categories_and_images_have_no_normaliser(space):
    assert make_normalizer(space) is None
