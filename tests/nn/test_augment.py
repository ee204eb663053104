"""Light changes of images: each in its own way, and what they show stays."""

import numpy as np
import pytest
import torch

from guerdon.nn.augment import BRIGHTNESS, CONTRAST, SHIFT, augment


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(number=64, size=20):
    generator = np.random.default_rng(0)
    return torch.from_numpy(generator.integers(0, 256, (number, 3, size, size), np.uint8))


def test_the_shape_stays_and_bytes_become_floats_between_0_and_1():
    given = images()
    changed = augment(given, seeded())
    assert changed.shape == given.shape
    assert changed.dtype == torch.float32
    assert changed.min() >= 0.0
    assert changed.max() <= 1.0
    assert given.dtype == torch.uint8
    assert torch.equal(given, images()), "the input stays as it is"


def test_the_same_generator_gives_the_same_and_another_something_else():
    given = images()
    one = augment(given, seeded(3))
    assert torch.equal(one, augment(given, seeded(3)))
    assert not torch.equal(one, augment(given, seeded(4)))


def test_a_plain_image_becomes_brighter_or_darker_within_bounds():
    level = 0.6
    given = torch.full((400, 1, 8, 8), round(level * 255), dtype=torch.uint8)
    changed = augment(given, seeded())
    each = changed[:, 0, 0, 0]
    torch.testing.assert_close(changed, each[:, None, None, None].expand_as(changed))
    lowest, highest = level * (1 - CONTRAST) - BRIGHTNESS, level * (1 + CONTRAST) + BRIGHTNESS
    assert lowest - 1e-6 <= each.min() < level - BRIGHTNESS
    assert level + BRIGHTNESS < each.max() <= highest + 1e-6
    assert abs(float(each.mean()) - level) < 0.01
    assert len(each.unique()) > 390, "each in its own way"


def test_contrast_changes_what_is_bright_more_than_what_is_dark():
    given = torch.zeros((400, 1, 20, 20), dtype=torch.uint8)
    given[:, :, :, 10:] = 128
    changed = augment(given, seeded())
    dark, bright = changed[:, 0, 0, 0], changed[:, 0, 0, -1]
    steps = (bright - dark)[dark > 0] / (128 / 255)
    assert 1 - CONTRAST - 1e-5 <= steps.min() < steps.max() <= 1 + CONTRAST + 1e-5
    assert steps.max() - steps.min() > CONTRAST


def place_of(dot):
    """Where the one bright pixel of each image is."""
    flat = dot.flatten(2).mean(1).argmax(1)
    return torch.stack([flat // dot.shape[3], flat % dot.shape[3]], 1)


def test_images_are_moved_by_so_many_pixels_at_most_in_all_directions():
    given = torch.zeros((2000, 3, 20, 20), dtype=torch.uint8)
    given[:, :, 10, 7] = 255
    moved = place_of(augment(given, seeded())) - torch.tensor([10, 7])
    for axis in range(2):
        assert sorted(set(moved[:, axis].tolist())) == list(range(-SHIFT, SHIFT + 1))
    assert len({tuple(row) for row in moved.tolist()}) == (2 * SHIFT + 1) ** 2


def test_all_colours_of_an_image_move_alike():
    given = images(16)
    grey = given[:, :1].expand(-1, 3, -1, -1)
    changed = augment(grey.contiguous(), seeded())
    torch.testing.assert_close(changed[:, 0], changed[:, 1], rtol=0, atol=0)
    torch.testing.assert_close(changed[:, 0], changed[:, 2], rtol=0, atol=0)


def test_what_comes_in_at_a_border_is_the_border():
    columns = torch.arange(20, dtype=torch.uint8) * 10
    given = columns.expand(500, 1, 20, 20).contiguous()
    changed = augment(given, seeded())
    # A ramp to the right stays one, with its ends repeated.
    steps = changed[:, 0, 5, 1:] - changed[:, 0, 5, :-1]
    assert (steps > -1e-6).all()
    flat = (steps < 1e-6).sum(1)
    assert set(flat.tolist()) <= set(range(SHIFT + 4))  # a dark end may also be cut off at 0
    assert int(flat.max()) >= SHIFT


@pytest.mark.parametrize("size", [(7, 9), (5, 3)])
def test_small_images_and_others_than_squares_are_fine(size):
    given = torch.full((10, 4, *size), 9, dtype=torch.uint8)
    assert augment(given, seeded()).shape == (10, 4, *size)
