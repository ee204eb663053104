import json

import numpy as np
import pytest

from guerdon.reward.scaling import ReturnScaler

GAMMA = 0.9


def reference(rew, over, mask):
    """Every discounted return, one environment after the other; and the scale that follows."""
    returns = []
    for env in range(rew.shape[1]):
        running = 0.0
        for step in range(len(rew)):
            if not mask[step, env]:
                continue
            running = GAMMA * running + rew[step, env]
            returns.append(running)
            if over[step, env]:
                running = 0.0
    return 1.0 / np.sqrt(np.var(returns) + 1e-8)


def rollout(seed=0, shape=(40, 3)):
    generator = np.random.default_rng(seed)
    rew = generator.normal(2.0, 3.0, shape).astype(np.float32)
    return rew, generator.random(shape) < 0.15, generator.random(shape) < 0.9


def test_by_hand():
    scaler = ReturnScaler(0.5)
    rew = np.array([[1.0], [2.0], [4.0]])
    scaler.collect(rew, np.array([[False], [True], [False]]), np.ones((3, 1), bool))
    # Returns of 1, 2 + 1/2, and 4 after the end of the episode.
    assert scaler.scale == pytest.approx(1 / np.std([1.0, 2.5, 4.0]))


def test_the_scale_is_that_of_a_plain_loop():
    scaler = ReturnScaler(GAMMA)
    scaler.collect(*rollout())
    assert scaler.scale == pytest.approx(reference(*rollout()), rel=1e-6)


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_returns_go_on_from_one_rollout_to_the_next(pieces):
    scaler = ReturnScaler(GAMMA)
    for piece in zip(*(np.array_split(x, pieces) for x in rollout()), strict=True):
        scaler.collect(*piece)
    assert scaler.scale == pytest.approx(reference(*rollout()), rel=1e-6)


def test_rows_that_are_no_data_do_not_count():
    rew, over, mask = rollout()
    clean, dirty = ReturnScaler(GAMMA), ReturnScaler(GAMMA)
    clean.collect(rew, over, mask)
    dirty.collect(np.where(mask, rew, np.nan), over | ~mask, mask)
    assert dirty.scale == clean.scale


def test_a_mask_of_nothing_changes_nothing():
    scaler = ReturnScaler(GAMMA)
    rew, over, mask = rollout()
    scaler.collect(rew, over, np.zeros_like(mask))
    assert scaler.scale == 1.0


def test_nothing_is_scaled_before_there_is_a_spread():
    scaler = ReturnScaler(GAMMA)
    assert scaler.scale == 1.0
    scaler.collect(np.full((1, 1), 5.0), np.zeros((1, 1), bool), np.ones((1, 1), bool))
    assert scaler.scale == 1.0


def test_reading_the_scale_changes_nothing():
    scaler = ReturnScaler(GAMMA)
    scaler.collect(*rollout())
    assert scaler.scale == scaler.scale


def test_broken_off_episodes_start_anew():
    rew, over, mask = rollout()
    scaler = ReturnScaler(GAMMA)
    scaler.collect(rew[:20], over[:20], mask[:20])
    scaler.break_off()
    scaler.collect(rew[20:], over[20:], mask[20:])
    broken = over.copy()
    last = [np.flatnonzero(mask[:20, env])[-1] for env in range(mask.shape[1])]
    broken[last, np.arange(mask.shape[1])] = True
    assert scaler.scale == pytest.approx(reference(rew, broken, mask), rel=1e-6)


def test_large_numbers_keep_their_spread():
    scaler = ReturnScaler(0.0)
    rew = np.array([[1e6], [1e6 + 1], [1e6 + 2]])
    scaler.collect(rew, np.zeros((3, 1), bool), np.ones((3, 1), bool))
    assert scaler.scale == pytest.approx(1 / np.std([0.0, 1.0, 2.0]), rel=1e-4)


def test_it_goes_on_where_its_state_was_taken():
    rew, over, mask = rollout()
    one = ReturnScaler(GAMMA)
    one.collect(rew[:17], over[:17], mask[:17])
    state = one.state_dict()
    other = ReturnScaler(GAMMA)
    other.load_state_dict(state)
    for scaler in (one, other):
        scaler.collect(rew[17:], over[17:], mask[17:])
    assert other.scale == one.scale
    assert other.state_dict()["returns"].tolist() == one.state_dict()["returns"].tolist()


def test_a_state_does_not_change_with_the_scaler():
    scaler = ReturnScaler(GAMMA)
    rew, over, mask = rollout()
    scaler.collect(rew[:9], over[:9], mask[:9])
    state = scaler.state_dict()
    before = state["returns"].tolist()
    scaler.collect(rew[9:], over[9:], mask[9:])
    assert state["returns"].tolist() == before


def test_all_but_the_returns_of_a_state_can_be_written_as_json():
    scaler = ReturnScaler(GAMMA)
    scaler.collect(*rollout())
    state = scaler.state_dict()
    assert isinstance(state.pop("returns"), np.ndarray)
    assert json.loads(json.dumps(state)) == state
