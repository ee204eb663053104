from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from guerdon.reward import REWARDS, RewardModel, Setting, make_reward
from guerdon.reward.base import REQUIREMENTS, check_requirements

VECTOR = spaces.Box(-1, 1, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 8, 8), np.uint8)
GOALS = spaces.Dict({"achieved_goal": VECTOR, "desired_goal": VECTOR})
NO_OPTIONS = SimpleNamespace()


def fail(*_):
    raise AssertionError("is not called")


@pytest.mark.parametrize(
    ("requirement", "lacking", "offering"),
    [
        ("density", Setting(), Setting(log_prob=fail)),
        ("replay", Setting(on_policy=True), Setting(on_policy=False)),
        ("checkpoint", Setting(), Setting(checkpoint_path="run")),
        ("horizon", Setting(), Setting(horizon=5)),
        ("goals", Setting(VECTOR), Setting(GOALS)),
        ("goals", Setting(), Setting(GOALS)),
        ("goals", Setting(spaces.Dict({"achieved_goal": VECTOR})), Setting(GOALS)),
        ("goals", Setting(spaces.Dict(GOALS.spaces | {"desired_goal": IMAGE})), Setting(GOALS)),
        ("vectors", Setting(IMAGE), Setting(VECTOR)),
        ("vectors", Setting(spaces.Dict({"a": VECTOR, "b": IMAGE})), Setting(GOALS)),
        ("vectors", Setting(spaces.Tuple([VECTOR, IMAGE])), Setting()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_run_does_not_offer_is_refused(requirement, lacking, offering):
    check_requirements("mine", [requirement], offering, NO_OPTIONS)
    with pytest.raises(ValueError, match="the reward 'mine' ") as error:
        check_requirements("mine", ["demonstrations", requirement], lacking, NO_OPTIONS)
    assert str(error.value) == f"the reward 'mine' {REQUIREMENTS[requirement]}"


def test_a_frozen_model_needs_no_density():
    check_requirements("mine", ["density"], Setting(), NO_OPTIONS, cotrain=False)


def test_a_horizon_may_be_an_option():
    check_requirements("mine", ["horizon"], Setting(), SimpleNamespace(horizon=7))


@pytest.mark.parametrize("name", REWARDS.names())
def test_models_require_what_is_known(name):
    assert REWARDS.get(name).requires <= set(REQUIREMENTS)


def test_requirements_are_checked_before_anything_is_made():
    kind = type("Demanding", (RewardModel,), {"requires": {"replay", "goals"}, "__init__": fail})
    REWARDS.register("test_demanding", kind)
    try:
        with pytest.raises(ValueError, match="'mine' needs observations with 'achieved_goal'"):
            make_reward({"terms": {"env": {}, "mine": {"type": "test_demanding"}}})
    finally:
        del REWARDS._classes["test_demanding"]
