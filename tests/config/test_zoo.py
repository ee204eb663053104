"""The zoo: every preset and every environment composes, with the real policies and rewards."""

import pytest

from guerdon.config import compose, explain, registry_of, sources, to_yaml
from guerdon.envs.ids import find_spec

PRESETS = [
    "acrobot_ppo",
    "cartpole_a2c",
    "cartpole_dqn",
    "cartpole_ppo",
    "cartpole_sac",
    "halfcheetah_ppo",
    "halfcheetah_sac",
    "hopper_ppo",
    "hopper_sac",
    "pendulum_ddpg",
    "pendulum_ppo",
    "pendulum_sac",
    "pendulum_td3",
    "pong_dqn",
    "pong_ppo",
    "push_ppo",
    "reach_loophole_ppo",
    "reach_ppo",
]


def test_the_presets_are_those_that_are_promised():
    assert set(PRESETS) <= set(sources.options("preset"))


@pytest.mark.parametrize("name", sources.options("preset"))
def test_every_preset_composes_and_comes_back_from_its_yaml(name, tmp_path):
    config = compose(name)
    assert config.run.name == name
    parts = sources.split_preset(name, registry_of("policy").names())
    assert config.policy["type"] == parts["policy"]
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert compose(tmp_path) == config
    uses_reward = registry_of("policy").get(config.policy["type"]).uses_reward
    first = next(iter(config.reward.terms)) if uses_reward else "no reward is used"
    assert explain(config).startswith(first)


@pytest.mark.parametrize("name", sources.options("env"))
def test_every_environment_is_registered(name):
    config = compose(None, [f"env={name}", "policy=ppo"])
    if config.env.atari:
        pytest.importorskip("ale_py")
    if name == "lunarlander":
        pytest.importorskip("Box2D", reason="guerdon[box2d] is missing")
    if name in ("pickcube", "pushcube"):
        pytest.importorskip("mani_skill", reason="guerdon[maniskill] is missing")
    assert find_spec(config.env.id).id == config.env.id


POLICIES = registry_of("policy").names()


@pytest.mark.parametrize(
    "policy", [n for n in POLICIES if registry_of("policy").get(n).uses_reward]
)
@pytest.mark.parametrize("reward", ["env", "constant"])
def test_any_policy_goes_with_any_reward_on_any_id(policy, reward):
    config = compose(None, ["env.id=Acrobot-v1", f"policy={policy}", f"reward={reward}"])
    assert config.policy["type"] == policy
    assert list(config.reward.terms) == [reward]
