import numpy as np
import pytest
import torch

from guerdon.policy import create_policy
from tests.policy.cases import CASES, collected, spaces_of
from tests.policy.hand import answer, five_steps, processed

SPACES = spaces_of(CASES["impala"].env)


def make(**options):
    return create_policy({"type": "impala", "model": {"hidden": [4]}, **options}, *SPACES)


def test_on_policy_targets_are_returns():
    policy = make(gamma=0.5)
    answer(policy.model, "value_head.bias", 10.0)
    rows = processed(policy, five_steps(policy))
    # As those of a2c: 1 + 2/2 (terminated); 2; 3 + 4/2 + 10/4 (truncated); 4 + 10/2; 5 + 10/2.
    assert rows.returns.tolist() == [2.0, 2.0, 7.5, 9.0, 10.0]
    assert rows.advantage.tolist() == [-8.0, -8.0, -2.5, -1.0, 0.0]
    assert rows.log_rho.tolist() == [0.0] * 5


def test_actions_of_an_older_policy_are_weighted():
    policy = make(gamma=0.5)
    answer(policy.model, "value_head.bias", 10.0)
    steps = five_steps(policy)  # acted with a chance of 1/2 each
    with torch.no_grad():  # the action 0 that was taken now has a chance of 1/4
        policy.model.head.linear.bias.copy_(torch.log(torch.tensor([0.25, 0.75])))
    rows = processed(policy, steps)
    assert rows.log_rho.exp().tolist() == pytest.approx([0.5] * 5)
    # TD errors: 1 + 5 - 10, 2 - 10, 3 + 5 - 10, 4 + 5 - 10, 5 + 5 - 10; weights of 1/2.
    second, fourth = 0.5 * -8, 0.5 * -1
    first, third = 0.5 * -4 + 0.5 * 0.5 * second, 0.5 * -2 + 0.5 * 0.5 * fourth
    expected = np.array([first, second, third, fourth, 0.0])
    assert rows.returns.tolist() == pytest.approx((expected + 10).tolist())
    after = [10 + second, 0.0, 10 + fourth, 10.0, 10.0]
    advantages = [r + 0.5 * v - 10 for r, v in zip((1, 2, 3, 4, 5), after, strict=True)]
    assert rows.advantage.tolist() == pytest.approx(advantages)
    assert rows.rho.tolist() == pytest.approx([0.5] * 5)


def test_it_passes_once_over_the_rows():
    policy = make()
    buffer = collected(policy, CASES["impala"])
    policy.update(30, buffer, repeat=5)
    assert float(policy.optimizers["model"].state_dict()["step"]) == round(len(buffer) / 30)


def test_actions_that_the_policy_would_not_take_now_do_not_change_it():
    """Whether or not advantages are normalised: they are before they are weighted."""
    for normalize in (False, True):
        policy = make(normalize_advantage=normalize, max_grad_norm=None)
        batch = processed(policy, five_steps(policy))
        batch.advantage = torch.tensor([3.0, 0.0, 1.0, 4.0, 2.0])
        batch.returns = batch.value.clone()
        batch.rho = torch.zeros(5)
        policy.learn(batch, batch_size=5)
        assert not policy.model.head.linear.bias.grad.any()
        batch.rho = torch.ones(5)
        policy.learn(batch, batch_size=5)
        assert policy.model.head.linear.bias.grad.any()
