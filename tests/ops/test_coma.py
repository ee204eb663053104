import math

import pytest
import torch

from guerdon.ops.coma import coma_policy_loss, counterfactual_advantage
from tests.ops.gradients import learns

LOGIT = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
ACT = torch.tensor([1, 0])
Q = torch.tensor([[1.0, 3.0], [4.0, 2.0]])


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_an_agent_is_compared_with_its_own_average():
    # 3 - (0.25 * 1 + 0.75 * 3) = 0.5;  4 - (0.5 * 4 + 0.5 * 2) = 1
    advantage = counterfactual_advantage(LOGIT, ACT, Q)
    assert advantage.tolist() == pytest.approx([0.5, 1])


def test_the_loss_weighs_log_probabilities_by_advantages():
    each = [-0.5 * math.log(0.75), -math.log(0.5)]
    assert coma_policy_loss(LOGIT, ACT, Q).item() == pytest.approx(sum(each) / 2)
    weight = torch.tensor([2.0, 0.0])
    assert coma_policy_loss(LOGIT, ACT, Q, weight).item() == pytest.approx(each[0])
    mask = torch.tensor([False, True])
    assert coma_policy_loss(LOGIT, ACT, Q, mask=mask).item() == pytest.approx(each[1])


def test_the_gradient_is_that_of_the_log_probability_times_a_constant():
    act = torch.tensor([[0, 2], [1, 1]])
    q = normal(2, 2, 3)
    constant = counterfactual_advantage(normal(2, 2, 3, seed=1), act, q)

    logit = normal(2, 2, 3, seed=1).requires_grad_()
    coma_policy_loss(logit, act, q).backward()
    again = normal(2, 2, 3, seed=1).requires_grad_()
    log_prob = again.log_softmax(-1).gather(-1, act[..., None])[..., 0]
    (-(log_prob * constant).mean()).backward()
    torch.testing.assert_close(logit.grad, again.grad)


def test_the_critic_learns_nothing_from_the_policy_loss():
    assert learns(coma_policy_loss, logit=LOGIT, act=ACT, q_value=Q) == {"logit"}


def test_shapes_that_would_broadcast_are_refused():
    for arguments in (
        (LOGIT, ACT[:, None], Q),
        (LOGIT, ACT, Q[:1]),
        (LOGIT, ACT, Q, torch.ones(2, 1)),
        (LOGIT, ACT, Q, None, torch.ones(1, dtype=torch.bool)),
    ):
        with pytest.raises(ValueError, match="shape"):
            coma_policy_loss(*arguments)
