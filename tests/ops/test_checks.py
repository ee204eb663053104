import numpy as np
import pytest
import torch

from guerdon.ops.checks import rows_of, same_shape, weighted_mean
from tests.gradients import gradient_is_right


def test_equal_shapes_pass_and_none_is_skipped():
    same_shape(1, a=torch.zeros(3), b=np.zeros(3), c=None)


def test_a_column_beside_a_row_is_refused_by_name():
    with pytest.raises(ValueError, match=r"same shape: value \(3,\), returns \(3, 1\)"):
        same_shape(value=torch.zeros(3), returns=torch.zeros(3, 1))


def test_a_wrong_rank_is_refused():
    with pytest.raises(ValueError, match=r"2 axes: rew \(3,\)"):
        same_shape(2, rew=torch.zeros(3))


def test_rows_beside_a_table_must_fit():
    rows_of(torch.zeros(2, 3, 4), act=torch.zeros(2, 3), weight=None)
    with pytest.raises(ValueError, match=r"shape \(2,\): act \(2, 1\)"):
        rows_of(torch.zeros(2, 4), act=torch.zeros(2, 1))


def test_the_mean_multiplies_weights_and_divides_by_the_rows_that_count():
    x = torch.tensor([1.0, 2.0, 6.0])
    weight = torch.tensor([1.0, 0.5, 2.0])
    mask = torch.tensor([True, True, False])
    assert weighted_mean(x) == 3  # (1 + 2 + 6) / 3
    assert weighted_mean(x, weight) == pytest.approx(14 / 3)  # (1 + 1 + 12) / 3
    assert weighted_mean(x, mask=mask) == 1.5  # (1 + 2) / 2
    assert weighted_mean(x, weight, mask) == 1  # (1 + 1) / 2


def test_the_mean_of_no_rows_is_zero():
    assert weighted_mean(torch.ones(2), mask=torch.zeros(2, dtype=torch.bool)) == 0


def test_rows_that_do_not_count_may_hold_anything():
    x = torch.tensor([1.0, torch.nan])
    assert weighted_mean(x, mask=torch.tensor([True, False])) == 1


def test_a_weight_of_another_shape_is_refused():
    for name in ("weight", "mask"):
        with pytest.raises(ValueError, match="same shape"):
            weighted_mean(torch.ones(3), **{name: torch.ones(3, 1)})


def test_the_mean_has_the_right_gradient():
    mask = torch.tensor([True, False, True])
    assert gradient_is_right(
        lambda x, w: weighted_mean(x, w, mask), torch.arange(3.0), torch.tensor([2.0, 3, 4])
    )
