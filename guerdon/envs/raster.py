"""Top-view images of a table, painted for many environments at once."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

SIZE = 64
"""Height and width of an image."""
EXTENT = 1.125
"""Half the width of the view; larger than 1 for a margin around the table [-1, 1]."""
_SCALE = SIZE / (2 * EXTENT)
_PARTS = 4  # subpixel positions per axis
_PIXEL = np.dtype("V3")  # one item per pixel, written at once


@dataclass(frozen=True)
class Shape:
    """A shape around a centre."""

    form: Literal["disc", "square", "diamond"]
    radius: float
    """Half its width, in table units; at least one pixel (0.035)."""

    def covers(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return whether points, relative to the centre, are inside the shape."""
        x, y = abs(x), abs(y)
        distances = {"disc": np.hypot(x, y), "square": np.maximum(x, y), "diamond": x + y}
        covered: np.ndarray = distances[self.form] <= self.radius
        return covered


class Brush:
    """Paints shapes into images. Pixels are precomputed for every subpixel position.

    Args:
        shapes: Shapes to paint. A shape outside the image is painted at its edge.
    """

    def __init__(self, *shapes: Shape) -> None:
        self._window = math.floor(max(shape.radius for shape in shapes) * _SCALE + 0.5)
        covered = [_pixels(shape, self._window) for shape in shapes]
        most = max(len(pixels) for places in covered for pixels in places)
        # Padded to the same number of pixels per shape, by repeating the first ones.
        self._pixels = np.array(
            [[np.resize(pixels, most) for pixels in places] for places in covered]
        )

    def paint(
        self,
        images: np.ndarray,
        ids: np.ndarray,
        centres: np.ndarray,
        colours: np.ndarray,
        shapes: int | np.ndarray = 0,
    ) -> None:
        """Paint one shape into each of some images.

        Args:
            images: uint8 [n, `SIZE`, `SIZE`, 3]; painted in place; C-contiguous.
            ids: Indices of the images.
            centres: Positions on the table, [len(ids), 2]: right and up.
            colours: uint8 [len(ids), 3].
            shapes: Index of the shape, for all or for each.
        """
        column, row = pixel_of(centres).T
        column_at, row_at = (
            np.clip(np.floor(at), self._window, SIZE - 1 - self._window) for at in (column, row)
        )
        part = [
            np.clip((at - whole) * _PARTS, 0, _PARTS - 1).astype(np.intp)
            for at, whole in ((row, row_at), (column, column_at))
        ]
        first = (ids * SIZE + row_at.astype(np.intp)) * SIZE + column_at.astype(np.intp)
        index = self._pixels[shapes, part[0] * _PARTS + part[1]] + first[:, None]
        _items(images)[index] = _items(colours)[:, None]


def fill(images: np.ndarray, ids: np.ndarray, colours: np.ndarray) -> None:
    """Fill some images with a colour; arguments as in `Brush.paint`."""
    _items(images).reshape(len(images), -1)[ids] = _items(colours)[:, None]


def pixel_of(positions: np.ndarray) -> np.ndarray:
    """Return fractional columns and rows of table positions [..., 2]; a pixel ends at +1."""
    return (positions * (1, -1) + EXTENT) * _SCALE


def _pixels(shape: Shape, window: int) -> list[np.ndarray]:
    """Return pixel offsets of a shape, for each subpixel position of its centre."""
    places = (np.arange(_PARTS) + 0.5) / _PARTS
    offsets = np.arange(-window, window + 1)
    found = []
    for down in places:
        for right in places:
            y, x = ((offsets + 0.5 - place) / _SCALE for place in (down, right))
            rows, columns = np.nonzero(shape.covers(x[None], y[:, None]))
            found.append(offsets[rows] * SIZE + offsets[columns])
    return found


def _items(colours: np.ndarray) -> np.ndarray:
    """Return colours [..., 3] as a flat array of items."""
    return colours.reshape(-1, 3).view(_PIXEL)[:, 0]
