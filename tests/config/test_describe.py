"""A configuration in words."""

import pytest

from guerdon.config import compose, explain, to_yaml

pytestmark = pytest.mark.usefixtures("zoo")


@pytest.mark.parametrize(
    ("arguments", "line"),  # with * for the sign of multiplication
    [
        (["cartpole_ppo"], "env*1 → GAE"),
        (["cartpole_dqn", "policy.n_step=3"], "env*1 → 3-step TD"),
        (
            [
                "cartpole_ppo",
                "reward.terms.env.weight=0",
                "reward.terms.constant.weight=0.5",
                "reward.clip=[-1,1]",
            ],
            "env*0 + constant*0.5 → clip → GAE",
        ),
        (
            ["cartpole_ppo", "reward.normalize=true", "reward.scale=0.1", "reward.clip=[-5,5]"],
            "env*1 → norm → *0.1 → clip → GAE",
        ),
    ],
)
def test_the_reward_pipeline_is_one_line(arguments, line):
    assert explain(compose(arguments[0], arguments[1:])) == line.replace("*", chr(215))


def test_python_objects_are_written_as_import_paths():
    source = {"env": "cartpole", "reward": {"type": "function", "target": explain}}
    config = compose(source)
    assert config.reward.terms["function"]["target"] is explain
    assert "target: guerdon.config.describe:explain" in to_yaml(config)
