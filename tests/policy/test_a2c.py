import math

import pytest
import torch

from guerdon.policy import create_policy
from tests.policy.cases import CASES, collected, spaces_of, warmed_up
from tests.policy.hand import answer, five_steps, processed

SPACES = spaces_of(CASES["a2c"].env)


def make(**options):
    return create_policy({"type": "a2c", "model": {"hidden": [4]}, **options}, *SPACES)


def test_returns_reach_to_the_end_of_what_was_collected():
    policy = make(gamma=0.5)
    answer(policy.model, "value_head.bias", 10.0)
    # 1 + 2/2 (terminated); 2; 3 + 4/2 + 10/4 (truncated); 4 + 10/2; 5 + 10/2 (newest).
    assert processed(policy, five_steps(policy)).returns.tolist() == [2.0, 2.0, 7.5, 9.0, 10.0]


def test_it_takes_one_step_with_all_rows():
    policy = make()
    policy.update(4, collected(policy, CASES["a2c"]), repeat=3)
    assert float(policy.optimizers["model"].state_dict()["step"]) == 1.0


def test_its_numbers_are_those_of_the_rows():
    policy = make(gamma=0.5)
    answer(policy.model, "value_head.bias", 10.0)
    metrics = policy.update(4, five_steps(policy))
    errors = [-8.0, -8.0, -2.5, -1.0, 0.0]
    # Both actions have a chance of 1/2, and the loss is minus log(1/2) times the mean advantage.
    assert metrics["train/policy_gradient_loss"].item() == pytest.approx(
        math.log(2) * sum(errors) / 5
    )
    assert metrics["train/value_loss"].item() == pytest.approx(sum(e * e for e in errors) / 10)
    assert metrics["train/entropy_loss"].item() == pytest.approx(-math.log(2))


def test_entropy_is_a_bonus():
    gradients = []
    for coefficient in (0.0, 1.0):
        policy = make(entropy_coefficient=coefficient, max_grad_norm=None)
        answer(policy.model, "head.linear.bias", 0.0, 1.0)
        batch = processed(policy, five_steps(policy))
        batch.advantage = torch.zeros(5)
        policy.learn(batch)
        gradients.append(policy.model.head.linear.bias.grad.clone())
    assert gradients[0].tolist() == [0.0, 0.0]
    # d(-entropy) / d(logit), of chances p and 1 - p: p (log p + entropy).
    p = 1 / (1 + math.e)
    slope = p * (1 - p)  # times the difference of the logits, which is 1
    assert gradients[1].tolist() == pytest.approx([-slope, slope], rel=1e-5)


def test_advantages_are_normalised_only_if_asked():
    losses = {}
    for normalize in (False, True):
        policy = make(normalize_advantage=normalize)
        answer(policy.model, "value_head.bias", 0.0)
        batch = processed(policy, five_steps(policy))
        batch.advantage = torch.tensor([4.0, 4.0, 4.0, 4.0, 9.0])
        losses[normalize] = policy.learn(batch)["train/policy_gradient_loss"].item()
    assert losses[False] == pytest.approx(5.0 * math.log(2))
    assert losses[True] == pytest.approx(0.0, abs=1e-6)


def test_an_update_tells_the_usual_numbers():
    policy, buffer = warmed_up(CASES["a2c"])
    assert set(policy.update(64, buffer)) == {
        "train/policy_gradient_loss",
        "train/value_loss",
        "train/entropy_loss",
        "train/explained_variance",
        "train/learning_rate",
    }
