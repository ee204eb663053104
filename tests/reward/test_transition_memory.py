import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.data import Batch
from guerdon.reward.trained import Memory


def rows(numbers):
    numbers = np.array(numbers, np.float32)
    return Batch(obs=Batch(a=numbers[:, None]), act=numbers.astype(np.int64))


@given(st.integers(1, 6), st.lists(st.one_of(st.none(), st.integers(1, 9)), max_size=8))
def test_the_newest_rows_are_kept(size, calls):
    memory, expected, count = Memory(size), [], 0
    for number in calls:
        if number is None:
            memory.clear()
            expected = []
        else:
            new = list(range(count, count + number))
            memory.add(rows(new))
            expected, count = [*expected, *new][-size:], count + number
        assert len(memory) == len(expected)
        if expected:
            held = memory.rows()
            assert sorted(held.act.tolist()) == expected
            assert held.obs.a[:, 0].tolist() == held.act.tolist()


def test_samples_are_rows_drawn_by_the_generator():
    memory = Memory(10)
    memory.add(rows(range(4)))
    one, other = (memory.sample(50, np.random.default_rng(3)) for _ in range(2))
    assert set(one.act.tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(one.obs.a[:, 0], one.act)
    np.testing.assert_array_equal(one.act, other.act)


def test_a_restored_memory_continues_as_the_first():
    first, second = Memory(5), Memory(5)
    first.add(rows(range(7)))
    second.load_training_state(first.training_state())
    for memory in (first, second):
        memory.add(rows([7, 8]))
    np.testing.assert_array_equal(first.rows().act, second.rows().act)
    np.testing.assert_array_equal(first.rows().obs.a, second.rows().obs.a)


def test_sampling_from_an_empty_memory_is_an_error():
    with pytest.raises(ValueError, match="nothing was collected yet"):
        Memory(3).sample(1, np.random.default_rng(0))


@pytest.mark.parametrize(("size", "kept"), [(3, [4, 5, 6]), (9, [2, 3, 4, 5, 6])])
def test_a_memory_of_another_size_restores_the_rows_that_fit(size, kept):
    first, second = Memory(5), Memory(size)
    first.add(rows(range(2, 7)))
    second.load_training_state(first.training_state())
    assert sorted(second.rows().act.tolist()) == kept
    second.add(rows([7]))
    assert len(second) == min(size, len(kept) + 1)
    assert 7 in second.rows().act


def test_a_state_is_a_copy():
    memory = Memory(3)
    memory.add(rows(range(3)))
    state = memory.training_state()
    memory.add(rows([9, 9, 9]))
    assert state["rows"]["act"].tolist() == [0, 1, 2]


def test_mixed_in_rows_are_kept_with_equal_probability():
    kept, generator = np.zeros(8), np.random.default_rng(0)
    for _ in range(1000):
        memory = Memory(3)
        for part in (range(5), range(5, 8)):
            memory.add(rows(part), reservoir=generator)
        held = memory.rows()
        assert held.obs.a[:, 0].tolist() == held.act.tolist()
        kept[held.act] += 1
    np.testing.assert_allclose(kept / 1000, 3 / 8, atol=0.05)


def test_keys_may_have_dots():
    first, second = Memory(3), Memory(3)
    first.add(Batch({"obs": {"a.b": np.arange(2.0)}}))
    second.load_training_state(first.training_state())
    np.testing.assert_array_equal(second.rows().obs["a.b"], [0.0, 1.0])
