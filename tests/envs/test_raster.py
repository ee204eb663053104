"""Pictures of tables."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.envs.raster import EXTENT, SIZE, Brush, Shape, fill, pixel_of
from tests.rounding import assert_close

PIXEL = 2 * EXTENT / SIZE
GREY, RED, BLUE = (np.array([colour], np.uint8) for colour in ([9] * 3, [200, 0, 0], [0, 0, 99]))


def blank(n=1):
    return np.zeros((n, SIZE, SIZE, 3), np.uint8)


def painted(shape, centre, n=1, i=0):
    pictures = blank(n)
    Brush(shape).paint(pictures, np.array([i]), np.array([centre], np.float32), RED)
    return pictures


def coloured(picture):
    """Rows and columns of the pixels that are not black."""
    return {tuple(int(at) for at in pixel) for pixel in np.argwhere(picture.any(-1))}


def middles():
    """The positions on the table of all pixels' middles: [SIZE, SIZE, 2]."""
    at = (np.arange(SIZE) + 0.5) * PIXEL - EXTENT
    return np.stack(np.broadcast_arrays(at[None], -at[:, None]), -1)


def test_right_on_the_table_is_right_in_the_picture_and_up_is_up():
    corners = np.array([[-EXTENT, EXTENT], [0, 0], [EXTENT, -EXTENT], [1, 0.5]])
    expected = [[0, 0], [32, 32], [64, 64], [60.4444, 17.7778]]
    assert_close(pixel_of(corners), expected, atol=1e-3)


def test_shapes_cover_the_pixels_whose_middles_they_cover():
    centre = (0.625 * PIXEL, -0.625 * PIXEL)  # in the pixel (32, 32), an eighth off its middle
    plus = {(32, 32), (31, 32), (33, 32), (32, 31), (32, 33)}
    square = {(row, column) for row in (31, 32, 33) for column in (31, 32, 33)}
    for form, radius, expected in [
        ("disc", 1.2, plus),
        ("disc", 1.65, square),
        ("diamond", 1.5, plus),
        ("square", 1.5, square),
        ("square", 0.6, {(32, 32)}),
    ]:
        found = painted(Shape(form, radius * PIXEL), centre)
        assert coloured(found[0]) == expected, form
        assert (found[0][32, 32] == RED).all()


@settings(max_examples=60)
@given(
    form=st.sampled_from(["disc", "square", "diamond"]),
    radius=st.floats(0.04, 0.3),
    centre=st.tuples(*[st.floats(-0.75, 0.75)] * 2),
)
def test_a_picture_is_right_to_a_quarter_of_a_pixel(form, radius, centre):
    way = np.moveaxis(np.abs(middles() - centre), -1, 0)
    distance = {"disc": np.hypot(*way), "square": way.max(0), "diamond": way.sum(0)}[form]
    found = painted(Shape(form, radius), centre)[0].any(-1)
    slack = 0.26 * PIXEL  # an eighth each way, which a diamond sees twice
    assert found[distance < radius - slack].all()
    assert not found[distance > radius + slack].any()


def test_only_the_named_pictures_are_painted_each_in_its_colour():
    pictures = blank(4)
    fill(pictures, np.array([1, 3]), np.concatenate([GREY, BLUE]))
    centres = np.zeros((2, 2), np.float32)
    brush = Brush(Shape("disc", 0.1), Shape("square", 0.3))
    brush.paint(pictures, np.array([3, 0]), centres, np.concatenate([RED, GREY]), np.array([1, 0]))
    assert {*map(tuple, pictures[0].reshape(-1, 3).tolist())} == {(0, 0, 0), (9, 9, 9)}
    assert (pictures[1] == GREY).all()
    assert not pictures[2].any()
    red = (pictures[3] == RED).all(-1)
    assert (pictures[3][~red] == BLUE).all()
    assert 250 < red.sum() < 330  # (0.6 / PIXEL) ** 2 is 291
    assert 20 < len(coloured(pictures[0])) < 30  # pi * (0.1 / PIXEL) ** 2 is 25


def test_nothing_is_painted_over_the_edge():
    for centre in [(9.0, 0.0), (-9.0, 0.0), (0.0, 9.0), (0.0, -9.0), (EXTENT, -EXTENT)]:
        found = painted(Shape("square", 0.1), centre, n=3, i=1)
        assert not found[[0, 2]].any()
        rows, columns = np.array([*coloured(found[1])]).T
        assert len(rows) in (25, 30, 36)  # 5.7 pixels wide
        assert max(np.ptp(rows), np.ptp(columns)) < 6  # and in one piece
