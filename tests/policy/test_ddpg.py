import numpy as np
import pytest
import torch

from guerdon.policy import create_policy
from tests.policy.cases import CASES, spaces_of, warmed_up, weights
from tests.policy.hand import GAMMA, TARGETS, answer, five_steps, processed

SPACES = spaces_of(CASES["ddpg"].env)


def make(**options):
    config = {"type": "ddpg", "gamma": GAMMA, "model": {"hidden": [4]}, **options}
    return create_policy(config, *SPACES)


@pytest.mark.parametrize("n_step", TARGETS)
def test_terminated_stops_the_bootstrap_and_truncated_does_not(n_step):
    policy = make(n_step=n_step)
    answer(policy.critic_target, "ensemble.bias_1", 10.0)
    assert processed(policy, five_steps(policy)).target.tolist() == TARGETS[n_step]


def test_it_has_one_critic():
    assert make().critic.n_critics == 1


def test_targets_have_no_noise():
    policy = make()
    buffer, drawn = five_steps(policy), policy.generator.get_state()
    first, second = (processed(policy, buffer).target for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(policy.generator.get_state(), drawn)


def test_actor_and_targets_move_every_time():
    policy, buffer = warmed_up(CASES["ddpg"])
    for _ in range(2):
        before = weights(policy)
        policy.update(16, buffer)
        changed = {n for n, v in weights(policy).items() if not np.array_equal(v, before[n])}
        for part in ("actor.", "critic.", "actor_target.", "critic_target."):
            assert any(name.startswith(part) for name in changed), part


@pytest.mark.parametrize(
    "option", [{"n_critics": 2}, {"actor_every": 2}, {"target_noise": 0.2}], ids=str
)
def test_what_td3_added_is_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        make(**option)


def test_exploration_is_an_option():
    assert make(exploration_noise=0.3).config.exploration_noise == 0.3
