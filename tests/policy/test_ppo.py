import math
from pathlib import Path

import numpy as np
import pytest
import torch

import guerdon
from guerdon.data import Batch
from guerdon.policy import create_policy
from tests.policy.cases import CASES, collected, make_policy, spaces_of, warmed_up
from tests.policy.hand import answer, five_steps, processed

BOX = spaces_of(CASES["ppo_continuous"].env)
DISCRETE = spaces_of(CASES["ppo"].env)


def make(where=DISCRETE, **options):
    return create_policy({"type": "ppo", "model": {"hidden": [4]}, **options}, *where)


def steps_taken(policy):
    return float(policy.optimizers["model"].state_dict()["step"])


def rows(policy, old, advantage, returns=(0.0, 0.0), value=(0.0, 0.0)):
    """Two rows with actions 0 and 1, which the policy now takes with chances of 1/2."""
    answer(policy.model, "value_head.bias", 3.0)
    return {
        "obs": torch.zeros(2, 4),
        "act": torch.tensor([0, 1]),
        "log_prob": torch.tensor(old).log(),
        "advantage": torch.tensor(advantage),
        "returns": torch.tensor(returns),
        "value": torch.tensor(value),
    }


@pytest.mark.parametrize(
    ("old", "advantage", "loss"),
    [
        ([0.5, 0.5], [1.0, 3.0], -2.0),
        # Twice as likely as before: gains count up to 1.2, losses in full.
        ([0.25, 0.25], [1.0, 2.0], -(1.2 + 2.4) / 2),
        ([0.25, 0.25], [-1.0, -2.0], 3.0),
        # Half as likely: losses count down to 0.8.
        ([1.0, 1.0], [-1.0, -2.0], 1.2),
        ([1.0, 1.0], [1.0, 2.0], -0.75),
    ],
)
def test_the_loss_is_the_clipped_surrogate(old, advantage, loss):
    policy = make(value_coefficient=0.0, normalize_advantage=False)
    found, parts, log_prob = policy.loss(rows(policy, old, advantage))
    assert found.item() == pytest.approx(loss)
    assert parts[0].item() == pytest.approx(loss)
    assert parts[2].item() == pytest.approx(math.log(2))
    assert log_prob.exp().tolist() == pytest.approx([0.5, 0.5])


def test_the_critics_loss_is_the_squared_error_times_its_weight():
    policy = make(value_coefficient=0.25, normalize_advantage=False)
    data = rows(policy, [0.5, 0.5], [0.0, 0.0], returns=(1.0, 6.0))
    loss, parts, _ = policy.loss(data)
    assert loss.item() == pytest.approx(0.25 * (4.0 + 9.0) / 2)
    assert parts[1].item() == pytest.approx((4.0 + 9.0) / 4)


def test_a_value_that_moved_too_far_is_clipped():
    policy = make(value_coefficient=1.0, normalize_advantage=False, value_clip_range=0.5)
    data = rows(policy, [0.5, 0.5], [0.0, 0.0], returns=(3.0, 3.0), value=(0.0, 3.0))
    loss, *_ = policy.loss(data)
    # The first value was 0 and may be 0.5 at most: its error counts from there.
    assert loss.item() == pytest.approx(2.5**2 / 2)


def test_entropy_is_a_bonus():
    policy = make(value_coefficient=0.0, normalize_advantage=False, entropy_coefficient=0.1)
    loss, *_ = policy.loss(rows(policy, [0.5, 0.5], [0.0, 0.0]))
    assert loss.item() == pytest.approx(-0.1 * math.log(2))


def test_advantages_are_normalised_in_every_minibatch():
    policy = make(value_coefficient=0.0)
    one, *_ = policy.loss(rows(policy, [0.25, 0.5], [1.0, 3.0]))
    other, *_ = policy.loss(rows(policy, [0.25, 0.5], [101.0, 107.0]))
    assert one.item() == pytest.approx(other.item(), rel=1e-5)
    # Normalised they are -0.71 and 0.71; ratios are 2 and 1.
    assert one.item() == pytest.approx(math.sqrt(0.5) * (2.0 - 1.0) / 2, rel=1e-5)


def test_one_row_is_not_normalised():
    policy = make(value_coefficient=0.0)
    data = {key: value[:1] for key, value in rows(policy, [0.5, 0.5], [4.0, 0.0]).items()}
    assert policy.loss(data)[0].item() == pytest.approx(-4.0)


def test_it_goes_over_all_rows_as_often_as_told():
    policy = make()
    buffer = collected(policy, CASES["ppo"])
    pieces = round(len(buffer) / 32)
    metrics = policy.update(32, buffer, repeat=3)
    assert metrics["train/epochs"] == 3
    assert steps_taken(policy) == 3 * pieces


def test_a_round_ends_early_when_the_policy_has_moved_too_far():
    metrics = {}
    for limit in (None, 1e-9):
        policy = make(target_kl=limit, learning_rate=1e-2)
        metrics[limit] = policy.update(32, collected(policy, CASES["ppo"]), repeat=5)
    assert metrics[None]["train/epochs"] == 5
    assert metrics[1e-9]["train/epochs"] == 1
    assert 0 < metrics[1e-9]["train/approx_kl"] < metrics[None]["train/approx_kl"]


def test_the_actions_of_good_rows_become_more_likely():
    policy = make(learning_rate=1e-2, value_coefficient=0.0)
    buffer = collected(policy, CASES["ppo"])
    batch = processed(policy, buffer)
    batch.advantage = torch.where(batch.act == 1, 1.0, -1.0)
    before = policy.model(batch.obs)["logit"].softmax(-1)[:, 1].mean()
    policy.learn(batch, batch_size=1000, repeat=1)
    assert policy.model(batch.obs)["logit"].softmax(-1)[:, 1].mean() > before


def test_continuous_actions_are_learned_as_they_were_drawn():
    policy = make(BOX)
    buffer = collected(policy, CASES["ppo_continuous"])
    buffer.policy.raw[:] = 100.0  # far outside the bounds, as a clipped action never is
    assert (processed(policy, buffer).act == 100.0).all()


def test_while_testing_it_takes_the_mean_and_the_most_likely():
    policy = make().eval()
    answer(policy.model, "head.linear.bias", 0.0, 0.1)
    assert policy(Batch(obs=np.zeros((3, 4), np.float32))).act.tolist() == [1, 1, 1]
    policy = make(BOX).eval()
    answer(policy.model, "head.linear.bias", 0.5)
    assert policy(Batch(obs=np.zeros((3, 3), np.float32))).act.tolist() == [[0.5]] * 3


def test_an_update_tells_the_usual_numbers():
    policy, buffer = warmed_up(CASES["ppo"])
    assert set(policy.update(64, buffer)) == {
        f"train/{name}"
        for name in (
            "policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction",
            "explained_variance", "epochs", "learning_rate",
        )
    }  # fmt: skip


def test_a_policy_that_did_not_move_has_a_divergence_of_0():
    policy = make_policy(CASES["ppo"])
    policy.optimizers["model"].learning_rate = 0.0
    metrics = policy.update(64, five_steps(policy))
    assert float(metrics["train/approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert metrics["train/clip_fraction"] == 0.0


def test_a_policy_that_moves_along_a_line_does_not_change_its_own_inputs(tmp_path):
    # A running mean of observations follows the policy to the right end: -11.7 with every seed.
    line = f"{Path(__file__).parents[2] / 'benchmarks' / 'line.py'}:Line"
    result = guerdon.train(
        env={"id": line}, policy="ppo", run={"max_steps": 20_000, "dir": str(tmp_path / "run")},
        eval={"every": 20_000, "episodes": 1}, seed=0, display="none",
    )  # fmt: skip
    assert guerdon.evaluate(result.policy, line, episodes=20)["return_mean"] >= -6
