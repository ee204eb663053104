import math

import numpy as np
import pytest

from guerdon.reward.preference import Teacher, TeacherConfig

FIRST = np.array([0.0, 4.0, 1.0, 2.0])
SECOND = np.array([3.0, 1.0, 1.0, 2.4])
ALL = np.array([-1.0, 1.0])  # standard deviation 1


def teacher(**options):
    return Teacher(TeacherConfig(**options))


def labels(seed=0, first=FIRST, second=SECOND, **options):
    return teacher(**options).label(first, second, ALL, np.random.default_rng(seed)).tolist()


def share(label=1.0, difference=1.0, n=4000, **options):
    zeros = np.zeros(n)
    return np.mean(np.array(labels(1, zeros, zeros + difference, **options)) == label)


def test_returns_are_sums_of_the_valid_rows():
    rew = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    assert teacher().returns(rew, np.array([3, 2])).tolist() == [7.0, 3.0]


def test_a_myopic_teacher_discounts_early_steps():
    rew = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    # 0.25 + 1 + 4, and of the first two rows 0.5 + 2
    found = teacher(type="myopic", gamma=0.5).returns(rew, np.array([3, 2]))
    assert found.tolist() == [5.25, 2.5]
    assert teacher(type="myopic").gamma == 0.9


def test_a_perfect_teacher_names_the_better_segment():
    assert labels() == [1.0, 0.0, 0.5, 1.0]


def test_similar_segments_are_equal():
    assert labels(type="equal", equal=0.5) == [1.0, 0.0, 0.5, 0.5]
    assert labels(type="equal", equal=0.3) == [1.0, 0.0, 0.5, 1.0]


def test_a_skipping_teacher_gives_no_label_if_both_are_bad():
    # of -1 and 1, a quarter lies below -0.5
    found = labels(first=np.array([-1.0, -1.0]), second=np.array([-0.6, 0.0]), type="skipping")
    assert math.isnan(found[0])
    assert found[1] == 1.0


def test_mistakes_are_opposite_labels():
    assert share(mistake=0.2) == pytest.approx(0.8, abs=0.03)
    assert share(mistake=0.0) == 1.0


def test_a_noisy_teacher_depends_on_the_difference():
    # the logits are 2 and 4
    assert share(beta=2.0) == pytest.approx(0.881, abs=0.025)
    assert share(beta=2.0, difference=2.0) == pytest.approx(0.982, abs=0.015)
    assert share(0.0, difference=-1.0, beta=2.0) == pytest.approx(0.881, abs=0.025)


def test_options_override_those_of_the_type():
    assert share(type="noisy") == pytest.approx(0.9 * 0.953 + 0.1 * 0.047, abs=0.03)
    assert teacher(type="noisy", mistake=0.0).mistake == 0.0
    assert teacher(type="equal").equal > 0
    assert teacher(type="perfect", gamma=0.5).gamma == 0.5


def test_noise_does_not_depend_on_the_scale_of_rewards():
    generator = np.random.default_rng
    small = teacher(type="noisy").label(FIRST, SECOND, ALL, generator(0))
    large = teacher(type="noisy").label(FIRST * 1e6, SECOND * 1e6, ALL * 1e6, generator(0))
    assert small.tolist() == large.tolist()
