import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.data import Batch
from guerdon.policy import create_policy
from tests.policy.cases import CASES, spaces_of, warmed_up, weights
from tests.policy.hand import GAMMA, TARGETS, answer, five_steps, processed
from tests.rounding import assert_close

SPACES = spaces_of(CASES["td3"].env)


def make(**options):
    config = {"type": "td3", "gamma": GAMMA, "model": {"hidden": [4]}, **options}
    return create_policy(config, *SPACES)


@pytest.mark.parametrize("n_step", TARGETS)
def test_terminated_stops_the_bootstrap_and_truncated_does_not(n_step):
    policy = make(n_step=n_step)
    # The second critic hopes for more, but the least counts.
    answer(policy.critic_target, "ensemble.bias_1", 10.0, 30.0)
    assert processed(policy, five_steps(policy)).target.tolist() == TARGETS[n_step]


def test_actions_are_learned_from_between_minus_one_and_one():
    policy = make()
    buffer = policy.make_buffer(4, 1, 0)
    for act in (-2.0, 0.0, 1.0, 2.0):  # of Pendulum's torques
        buffer.add(
            obs=np.zeros(3, np.float32), act=np.float32([act]), rew=0.0, terminated=False,
            truncated=False, obs_next=np.zeros(3, np.float32),
        )  # fmt: skip
    assert processed(policy, buffer).act.flatten().tolist() == [-1.0, 0.0, 0.5, 1.0]


def test_noise_on_next_actions_is_bounded():
    policy = make(target_noise=100.0, target_noise_clip=0.25)
    answer(policy.actor_target, "head.linear.bias", 0.0)
    seen = []
    target = policy.critic_target
    target.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    processed(policy, five_steps(policy))
    assert seen[0].abs().flatten().tolist() == [0.25] * 5


def test_next_actions_stay_within_bounds_with_noise():
    policy = make(target_noise=100.0, target_noise_clip=5.0)
    seen = []
    policy.critic_target.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    processed(policy, five_steps(policy))
    assert seen[0].abs().max() == 1.0


def test_the_actor_and_the_targets_move_every_second_time():
    policy, buffer = warmed_up(CASES["td3"])  # three updates
    for update in range(4, 8):
        before = weights(policy)
        metrics = policy.update(16, buffer)
        changed = {
            name for name, v in weights(policy).items() if not np.array_equal(v, before[name])
        }
        moves = update % 2 == 0
        assert any(name.startswith("critic.") for name in changed)
        assert any(name.startswith("actor.") for name in changed) is moves
        assert any("_target." in name for name in changed) is moves
        assert ("train/actor_loss" in metrics) is moves


def test_targets_go_the_share_tau_of_the_way():
    policy, buffer = warmed_up(CASES["td3"])
    before = weights(policy)
    policy.update(16, buffer)
    after, tau = weights(policy), policy.config.tau
    for part in ("actor", "critic"):
        for name in getattr(policy, part).state_dict():
            target = f"{part}_target.{name}"
            expected = before[target] + tau * (after[f"{part}.{name}"] - before[target])
            assert_close(after[target], expected)


def test_the_actor_climbs_the_first_critic():
    policy, buffer = warmed_up(CASES["td3"])
    rows = processed(policy, buffer, 64)

    def value():
        with torch.no_grad():
            act = policy.actor(rows.obs)["action"]
            return float(policy.critic(rows.obs, act)["q_value"][0].mean())

    policy.optimizers["critic"].learning_rate = 0.0
    before = value()
    policy.learn(rows)
    assert value() > before


def test_exploration_is_a_share_of_half_the_range():
    space = spaces.Box(np.float32([0.0]), np.float32([40.0]))
    policy = create_policy({"type": "td3", "exploration_noise": 0.1}, SPACES[0], space)
    answer(policy.actor, "head.linear.bias", 0.0)
    act = policy(Batch(obs=np.zeros((4000, 3), np.float32))).act
    assert act.mean() == pytest.approx(20.0, abs=0.2)
    assert act.std() == pytest.approx(2.0, rel=0.05)


def test_without_exploration_noise_it_acts_as_it_tests():
    policy = make(exploration_noise=0.0)
    batch = Batch(obs=np.zeros((5, 3), np.float32))
    collecting = policy(batch).act
    np.testing.assert_array_equal(collecting, policy.eval()(batch).act)
