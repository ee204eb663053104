"""Light changes of images: each in its own way, and what they show stays."""

import numpy as np
import pytest
import torch

from guerdon.nn.augment import (
    BRIGHTNESS,
    CONTRAST,
    PROBES,
    SHIFT,
    augment,
    colours,
    noise,
    occlude,
    over_expose,
    saturate,
    synthetic_failures,
    under_expose,
    uniform,
)


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


# --- failures and probes


@pytest.mark.parametrize("change", [each.change for each in PROBES.values()] + [synthetic_failures])
@pytest.mark.parametrize("channels", [1, 3, 6])
def test_changes_give_bytes_of_the_same_size_by_their_generator_alone(change, channels):
    given = images(12)[:, :1].repeat(1, channels, 1, 1)
    before = given.clone()
    changed = change(given, seeded(3))
    assert changed.dtype == torch.uint8
    assert changed.shape[1:] == given.shape[1:]
    assert torch.equal(changed, change(given, seeded(3)))
    assert torch.equal(given, before)


def test_uniform_images_have_one_colour_and_many_are_extreme():
    changed = uniform(images(2000), seeded())
    each = changed[:, :, :1, :1]
    assert torch.equal(changed, each.expand_as(changed))
    values = each.flatten()
    assert 0.2 < float((values == 0).float().mean()) < 0.3
    assert 0.2 < float((values == 255).float().mean()) < 0.3
    grey = (each[:, 0] == each[:, 1]) & (each[:, 0] == each[:, 2])
    assert grey.float().mean() > 0.25


def test_the_grid_of_colours_has_black_white_and_grey():
    grid = colours(images(1), seeded())[:, :, 0, 0].tolist()
    assert len(grid) == len({tuple(each) for each in grid}) == 125
    assert all([level] * 3 in grid for level in (0, 128, 255))


def test_noise_has_nothing_of_the_image():
    one, other = noise(images(8), seeded()), noise(torch.zeros_like(images(8)), seeded())
    assert torch.equal(one, other)


def test_saturated_images_are_clipped_by_half_or_nearly_black():
    changed = saturate(torch.full((400, 3, 8, 8), 140, dtype=torch.uint8), seeded())
    assert (changed[::2] == 255).all()
    assert changed[1::2].max() <= 28
    # A factor would leave black and white as they are, which may be how success looks.
    given = torch.zeros((400, 3, 8, 8), dtype=torch.uint8)
    given[:, :, 2:4, 2:4] = 255
    bright = saturate(given, seeded())[::2]
    assert bright[:, :, 0, 0].min() >= 127
    assert (bright[:, :, 2, 2] == 255).all()


def test_exposure_by_hand():
    given = torch.tensor([10, 63, 64, 255], dtype=torch.uint8).view(1, 1, 2, 2)
    assert over_expose(given, seeded()).flatten().tolist() == [40, 252, 255, 255]
    assert under_expose(given, seeded()).flatten().tolist() == [2, 16, 16, 64]


def test_a_quarter_of_an_image_is_covered():
    given = torch.full((300, 3, 20, 20), 77, dtype=torch.uint8)
    changed = occlude(given, seeded())
    covered = (changed != given).any(1).flatten(1).sum(1)
    assert set(covered.tolist()) <= {0, 100}  # by chance, the colour is that of the image
    assert (covered == 100).float().mean() > 0.99
