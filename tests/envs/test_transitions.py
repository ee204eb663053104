"""Every way to run environments gives the same true transitions, and loses none."""

import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.envs.walking import Pattern, check_buffer, gymnasium_vector, made, walk

PATTERNS = st.builds(
    Pattern,
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    truncates=st.lists(st.booleans(), min_size=1, max_size=3),
)
MODES = st.sampled_from(AutoresetMode)


@settings(max_examples=60)
@given(MODES, PATTERNS, st.integers(1, 4), st.integers(1, 40), st.booleans())
def test_all_autoreset_modes_of_gymnasium_give_true_transitions(mode, pattern, n, n_steps, copy):
    env = gymnasium_vector(mode, pattern, n, copy)
    next_step = mode is AutoresetMode.NEXT_STEP
    found = walk(env, pattern, n_steps, next_step)
    n_rows = sum(map(len, found.rows))
    for rows in found.rows:
        assert rows == pattern.rows(len(rows))
    assert n_rows + found.n_dummies == n * n_steps
    assert next_step or found.n_dummies == 0
    check_buffer(found, n_rows)


@settings(max_examples=40)
@given(PATTERNS, st.integers(1, 4), st.integers(1, 40), st.booleans())
def test_the_base_backend_gives_true_transitions(pattern, n, n_steps, in_place):
    env = made("base", pattern, n, kwargs={"in_place": in_place})
    found = walk(env, pattern, n_steps)
    for rows in found.rows:
        assert rows == pattern.rows(n_steps)
    assert found.n_dummies == 0
    check_buffer(found, n * n_steps)


@pytest.mark.parametrize("backend", ["subprocess", "async_subprocess"])
@settings(max_examples=8)
@given(PATTERNS, st.integers(1, 3), st.integers(1, 40), st.booleans())
def test_processes_give_true_transitions(backend, pattern, n, n_steps, in_place):
    with made(backend, pattern, n, kwargs={"in_place": in_place}) as env:
        assert env.synchronous == (backend == "subprocess")
        found = walk(env, pattern, n_steps)
    for rows in found.rows:
        assert rows == pattern.rows(len(rows))
    n_rows = sum(map(len, found.rows))
    assert n_steps <= n_rows <= n * n_steps
    assert found.n_dummies == 0
    check_buffer(found, n_rows)


def test_next_step_marks_the_row_after_an_end_and_only_that():
    pattern = Pattern(lengths=(2, 3), truncates=(False, True))
    env = gymnasium_vector(AutoresetMode.NEXT_STEP, pattern, 1)
    env.reset(0)
    steps = [env.step([0]) for _ in range(6)]
    assert [step.dummy is None for step in steps] == [True, True, False, True, True, True]
    assert [int(step.obs_next[0, 2]) for step in steps] == [1, 2, 0, 1, 2, 3]
    assert [bool(step.terminated[0]) for step in steps] == [False, True, False, False, False, False]
    assert [bool(step.truncated[0]) for step in steps] == [False] * 5 + [True]


def test_an_episode_broken_off_by_reset_leaves_no_dummy_behind():
    env = gymnasium_vector(AutoresetMode.NEXT_STEP, Pattern(lengths=(1,)), 2)
    env.reset(0)
    assert env.step([0, 0]).terminated.all()
    env.reset(0)
    assert env.step([0, 0]).dummy is None
