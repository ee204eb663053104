"""Which rows a fit sees, and in which batches."""

import itertools

import numpy as np
import torch

from guerdon.data.frames import Frames
from guerdon.training.fit_steps import BalancedBatches, Inputs, capped, steps_per_epoch

ROWS = np.arange(100, 140)
LABELS = np.arange(40) < 6


def taken(batch_size, number, seed=0):
    generator = torch.Generator().manual_seed(seed)
    batches = BalancedBatches(ROWS, LABELS, batch_size, generator)
    return list(itertools.islice(batches, number))


def test_half_of_each_batch_is_positive_and_says_so():
    for rows, labels in taken(7, 9):
        assert labels.tolist() == [1.0] * 4 + [0.0] * 3
        assert (rows < 106).tolist() == [True] * 4 + [False] * 3


def test_every_row_comes_before_any_comes_again():
    rows = torch.stack([rows for rows, _ in taken(4, 17)])
    positives, negatives = rows[:, :2].flatten(), rows[:, 2:].flatten()
    for epoch in positives[:30].view(5, 6):
        assert sorted(epoch.tolist()) == list(range(100, 106))
    assert sorted(negatives.tolist()) == list(range(106, 140))


def test_a_batch_larger_than_a_label_repeats_its_rows():
    rows, _ = taken(40, 1)[0]
    counts = np.bincount(rows[:20] - 100, minlength=6)
    assert counts.sum() == 20
    assert set(counts) == {3, 4}


def test_the_order_depends_on_the_generator_alone():
    first, again, other = (torch.stack([r for r, _ in taken(8, 5, s)]) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_epoch_passes_the_rarer_label_once():
    assert steps_per_epoch(LABELS, 4) == 3
    assert steps_per_epoch(~LABELS, 4) == 3
    assert steps_per_epoch(LABELS, 5) == 3
    assert steps_per_epoch(LABELS, 64) == 1


def test_a_cap_keeps_the_rarer_label():
    generator = np.random.default_rng(0)
    for most, positives in ((4, 2), (11, 5), (20, 6), (39, 6)):
        rows = capped(ROWS, LABELS, most, generator)
        assert len(rows) == len(set(rows)) == most
        assert (rows < 106).sum() == positives
        assert (np.diff(rows) > 0).all()
    flipped = capped(ROWS, ~LABELS, 20, generator)
    assert (flipped < 106).sum() == 6
    for most in (40, 50, None):
        assert capped(ROWS, LABELS, most, generator) is ROWS


def test_rows_are_taken_in_their_order_from_every_camera():
    images = {
        "base": np.arange(60, dtype=np.uint8).reshape(5, 3, 2, 2),
        "hand": np.arange(100, 120, dtype=np.uint8).reshape(5, 1, 2, 2),
    }
    frames = Frames(images, np.zeros(5, bool), np.zeros(5, np.int64), np.array([False]))
    shown = Inputs(frames, "cpu", augment=False).take(torch.tensor([3, 0, 3]))
    assert {key: part[:, 0, 0, 0].tolist() for key, part in shown.items()} == {
        "base": [36, 0, 36],
        "hand": [112, 100, 112],
    }
    assert all(part.dtype is torch.uint8 for part in shown.values())
