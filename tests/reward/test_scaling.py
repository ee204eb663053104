import json

import numpy as np
import pytest

from guerdon.reward.scaling import ReturnScaler

GAMMA = 0.9


def reference(rew, mask, first):
    """The scale from all discounted returns, one environment after the other."""
    returns = []
    for env in range(rew.shape[1]):
        running = 0.0
        for step in np.flatnonzero(mask[:, env]):
            running = rew[step, env] + (0.0 if first[step, env] else GAMMA * running)
            returns.append(running)
    return 1.0 / np.sqrt(np.var(returns) + 1e-8)


def rollout(seed=0, shape=(40, 3)):
    generator = np.random.default_rng(seed)
    rew = generator.normal(2.0, 3.0, shape).astype(np.float32)
    return rew, generator.random(shape) < 0.9, generator.random(shape) < 0.15


@pytest.mark.parametrize(
    ("first", "returns"),
    [([True, False, True], [1.0, 2.5, 4.0]), (None, [1.0, 2.5, 5.25])],
    ids=["episodes", "across episodes"],
)
def test_by_hand(first, returns):
    scaler = ReturnScaler(0.5)
    first = first and np.array(first)[:, None]
    scaler.collect(np.array([[1.0], [2.0], [4.0]]), np.ones((3, 1), bool), first)
    assert scaler.scale == pytest.approx(1 / np.std(returns))


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_reference(pieces):
    scaler = ReturnScaler(GAMMA)
    for piece in zip(*(np.array_split(x, pieces) for x in rollout()), strict=True):
        scaler.collect(*piece)
    assert scaler.scale == pytest.approx(reference(*rollout()), rel=1e-6)
    assert scaler.scale == scaler.scale


def test_rows_that_are_no_transitions_do_not_count():
    rew, mask, first = rollout()
    clean, dirty = ReturnScaler(GAMMA), ReturnScaler(GAMMA)
    clean.collect(rew, mask, first)
    dirty.collect(np.where(mask, rew, np.nan), mask, first | ~mask)
    assert dirty.scale == clean.scale


def test_nothing_is_scaled_before_there_is_a_spread():
    scaler = ReturnScaler(GAMMA)
    assert scaler.scale == 1.0
    rew, mask, first = rollout()
    scaler.collect(rew, np.zeros_like(mask), first)
    assert scaler.scale == 1.0
    scaler.collect(np.full((1, 1), 5.0), np.ones((1, 1), bool), np.ones((1, 1), bool))
    assert scaler.scale == 1.0


def test_large_numbers_keep_their_spread():
    scaler = ReturnScaler(0.0)
    rew = np.array([[1e6], [1e6 + 1], [1e6 + 2]])
    scaler.collect(rew, np.ones((3, 1), bool), np.zeros((3, 1), bool))
    assert scaler.scale == pytest.approx(1 / np.std([0.0, 1.0, 2.0]), rel=1e-4)


def test_state():
    one, other = ReturnScaler(GAMMA), ReturnScaler(GAMMA)
    one.collect(*(x[:17] for x in rollout()))
    state = one.training_state()
    returns = state["returns"].tolist()
    other.load_training_state(state)
    for scaler in (one, other):
        scaler.collect(*(x[17:] for x in rollout()))
    assert other.scale == one.scale
    after = [scaler.training_state()["returns"].tolist() for scaler in (one, other)]
    assert after[0] == after[1]
    assert state["returns"].tolist() == returns  # a copy
    assert isinstance(state.pop("returns"), np.ndarray)
    assert json.loads(json.dumps(state)) == state
