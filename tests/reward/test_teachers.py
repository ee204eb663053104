import math

import numpy as np
import pytest

from guerdon.reward.teachers import Teacher, TeacherConfig

FIRST = np.array([0.0, 4.0, 1.0, 2.0])
SECOND = np.array([3.0, 1.0, 1.0, 2.4])
ALL = np.array([-1.0, 1.0])  # of a spread of 1


def teacher(**options):
    return Teacher(TeacherConfig(**options))


def labels(generator_seed=0, first=FIRST, second=SECOND, **options):
    generator = np.random.default_rng(generator_seed)
    return teacher(**options).label(first, second, ALL, generator).tolist()


def share(name_of=1.0, difference=1.0, n=4000, **options):
    zeros = np.zeros(n)
    return np.mean(np.array(labels(1, zeros, zeros + difference, **options)) == name_of)


def test_returns_are_sums_of_the_rows_that_count():
    rew = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    assert teacher().returns(rew, np.array([3, 2])).tolist() == [7.0, 3.0]


def test_a_myopic_teacher_sees_the_latest_steps_best():
    rew = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    # 0.25 + 1 + 4, and of the first two rows 0.5 + 2
    found = teacher(type="myopic", gamma=0.5).returns(rew, np.array([3, 2]))
    assert found.tolist() == [5.25, 2.5]
    assert teacher(type="myopic").gamma == 0.9


def test_a_perfect_teacher_names_the_better_one():
    assert labels() == [1.0, 0.0, 0.5, 1.0]


def test_a_teacher_has_no_preference_between_those_that_are_alike():
    assert labels(type="equal", equal=0.5) == [1.0, 0.0, 0.5, 0.5]
    assert labels(type="equal", equal=0.3) == [1.0, 0.0, 0.5, 1.0]


def test_a_skipping_teacher_does_not_answer_where_both_are_bad():
    # of -1 and 1, a quarter lies below -0.5
    found = labels(first=np.array([-1.0, -1.0]), second=np.array([-0.6, 0.0]), type="skipping")
    assert math.isnan(found[0])
    assert found[1] == 1.0


def test_a_teacher_who_makes_mistakes():
    assert share(mistake=0.2) == pytest.approx(0.8, abs=0.03)
    assert share(mistake=0.0) == 1.0


def test_a_noisy_teacher_is_the_surer_the_larger_the_difference():
    # the logits are 2 and 4
    assert share(beta=2.0) == pytest.approx(0.881, abs=0.025)
    assert share(beta=2.0, difference=2.0) == pytest.approx(0.982, abs=0.015)
    assert share(0.0, difference=-1.0, beta=2.0) == pytest.approx(0.881, abs=0.025)


def test_the_kinds_of_teachers_differ_in_one_weakness():
    assert share(type="noisy") == pytest.approx(0.9 * 0.953 + 0.1 * 0.047, abs=0.03)
    assert teacher(type="noisy", mistake=0.0).mistake == 0.0
    assert teacher(type="equal").equal > 0
    assert teacher(type="perfect", gamma=0.5).gamma == 0.5


def test_noise_does_not_depend_on_the_scale_of_rewards():
    generator = np.random.default_rng
    small = teacher(type="noisy").label(FIRST, SECOND, ALL, generator(0))
    large = teacher(type="noisy").label(FIRST * 1e6, SECOND * 1e6, ALL * 1e6, generator(0))
    assert small.tolist() == large.tolist()
