import math

import pytest
import torch

from guerdon import ops


def T(*values):  # noqa: N802 - a tensor
    return torch.tensor(values, dtype=torch.float64)


LOGIT = T(-2.0, 0.0, 3.0)
D = torch.sigmoid(LOGIT)


def test_rewards_are_what_papers_say_of_the_probability():
    torch.testing.assert_close(ops.gail_reward(LOGIT), -torch.log(1 - D))
    torch.testing.assert_close(ops.log_d_reward(LOGIT), torch.log(D))
    torch.testing.assert_close(ops.airl_reward(LOGIT), torch.log(D) - torch.log(1 - D))
    torch.testing.assert_close(ops.balanced_reward(LOGIT), (torch.log(D) - torch.log(1 - D)) / 2)
    torch.testing.assert_close(ops.fairl_reward(LOGIT, 100.0), -LOGIT * torch.exp(LOGIT))


def test_the_signs_say_whether_living_or_ending_is_a_reward_by_itself():
    logit = torch.linspace(-50, 50, 101)
    assert (ops.gail_reward(logit) >= 0).all()
    assert (ops.log_d_reward(logit) <= 0).all()
    for either in (ops.airl_reward, ops.balanced_reward, ops.fairl_reward):
        assert either(T(-1.0)) * either(T(1.0)) < 0


def test_rewards_of_confident_predictions_are_finite():
    logit = torch.tensor([-1e4, 1e4])
    for reward in (ops.gail_reward, ops.log_d_reward, ops.airl_reward, ops.fairl_reward):
        assert torch.isfinite(reward(logit)).all()
    assert ops.fairl_reward(logit, 5.0).tolist() == [pytest.approx(0, abs=1e-6), -5.0]


def test_the_entropy_of_a_prediction():
    expected = -(D * torch.log(D) + (1 - D) * torch.log(1 - D))
    torch.testing.assert_close(ops.bernoulli_entropy(LOGIT), expected)
    assert ops.bernoulli_entropy(T(0.0)).item() == pytest.approx(math.log(2))
