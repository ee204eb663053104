"""Images of another size."""

import numpy as np
import pytest

from guerdon.data.frames import resized


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [
        ([[0, 4, 8, 8], [4, 0, 8, 8], [1, 1, 0, 0], [2, 2, 0, 0]], (2, 2), [[2, 8], [2, 0]]),
        ([[90, 0, 90], [0, 0, 0], [90, 0, 0]], (2, 2), [[40, 40], [40, 0]]),  # 4/9, 2/9, 1/9
        ([[1, 2], [3, 4]], (4, 4), [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]),
        ([[0, 0, 200, 200]], (2, 2), [[0, 200], [0, 200]]),
        ([[0, 10, 100, 200], [20, 30, 100, 200]], (1, 2), [[15, 150]]),
        ([[255] * 7] * 5, (3, 2), [[255] * 2] * 3),
    ],
)
def test_a_pixel_is_the_mean_of_what_it_covers(rows, size, expected):
    small = resized(np.array(rows, np.uint8), size)
    assert small.dtype == np.uint8
    assert small.tolist() == expected


def test_many_are_resized_at_once_and_each_for_itself():
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 7, 5), np.uint8)
    small = resized(images, (4, 3))
    assert small.shape == (3, 2, 4, 3)
    for index in np.ndindex(3, 2):
        np.testing.assert_array_equal(small[index], resized(images[index], (4, 3)))
    view = np.moveaxis(np.ascontiguousarray(np.moveaxis(images, 1, 3)), 3, 1)
    np.testing.assert_array_equal(resized(view, (4, 3)), small)


def test_pictures_of_the_right_size_are_not_touched():
    images = np.zeros((1, 3, 2, 4), np.uint8)
    assert resized(images, [2, 4]) is images
