import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.config import ConfigError
from guerdon.data import Batch
from guerdon.policy import create_policy
from tests.policy.cases import CASES, spaces_of, warmed_up, weights
from tests.policy.hand import GAMMA, TARGETS, answer, five_steps, processed
from tests.rounding import assert_close

BOX = spaces_of(CASES["sac"].env)
DISCRETE = spaces_of(CASES["sac_discrete"].env)
both = pytest.mark.parametrize("where", [BOX, DISCRETE], ids=["box", "discrete"])


def make(where, **options):
    config = {"type": "sac", "gamma": GAMMA, "model": {"hidden": [4]}, **options}
    return create_policy(config, *where)


@both
@pytest.mark.parametrize("n_step", TARGETS)
def test_terminated_stops_the_bootstrap_and_truncated_does_not(n_step, where):
    policy = make(where, n_step=n_step, temperature=1e-12)
    biases = (10.0, 30.0) if where is BOX else (10.0, 10.0, 30.0, 30.0)
    answer(policy.critic_target, "ensemble.bias_1", *biases)
    target = processed(policy, five_steps(policy)).target
    assert target.tolist() == pytest.approx(TARGETS[n_step])


def test_the_next_value_has_the_entropy_of_two_equal_actions():
    policy = make(DISCRETE, temperature=3.0)
    answer(policy.critic_target, "ensemble.bias_1", 10.0)
    answer(policy.actor, "head.linear.bias", 0.0)
    target = processed(policy, five_steps(policy)).target
    assert float(target[0]) == pytest.approx(1.0 + GAMMA * (10.0 + 3.0 * math.log(2)))
    assert float(target[1]) == 2.0  # terminated: no entropy either


def test_the_next_value_is_a_mean_over_discrete_actions():
    policy = make(DISCRETE, temperature=1e-12)
    answer(policy.critic_target, "ensemble.bias_1", 0.0, 8.0, 4.0, 6.0)
    answer(policy.actor, "head.linear.bias", 0.0, math.log(3))  # chances of 1/4 and 3/4
    target = processed(policy, five_steps(policy)).target
    # The least of the two critics is taken action by action: 0 and 6.
    assert float(target[0]) == pytest.approx(1.0 + GAMMA * 4.5)


def test_the_next_value_has_the_entropy_of_the_drawn_action():
    policy = make(BOX, temperature=2.0)
    answer(policy.critic_target, "ensemble.bias_1", 10.0)
    answer(policy.actor, "head.linear.bias", 0.0, -5.0)  # mean 0, standard deviation e^-5
    batch = five_steps(policy)
    target = torch.stack([processed(policy, batch).target[0] for _ in range(400)])
    entropy = 0.5 * math.log(2 * math.pi * math.e) - 5.0  # tanh is the identity there
    assert float(target.mean()) == pytest.approx(1.0 + GAMMA * (10.0 + 2.0 * entropy), abs=0.2)


@both
def test_a_tuned_temperature_falls_with_too_much_entropy_and_rises_with_too_little(where):
    for wanted, direction in ((-100.0, -1.0), (100.0, 1.0)):
        policy = make(where, target_entropy=wanted)
        buffer = five_steps(policy)
        policy.update(4, buffer)
        assert math.copysign(1.0, policy.log_temperature.item()) == direction


@both
def test_a_given_temperature_stays(where):
    policy = make(where, temperature=0.2)
    policy.update(4, five_steps(policy))
    assert policy.log_temperature.exp().item() == pytest.approx(0.2)
    assert set(policy.optimizers) == {"actor", "critic"}


@pytest.mark.parametrize("temperature", [0.0, -1.0, "much"])
def test_an_impossible_temperature_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        make(BOX, temperature=temperature)


def test_target_entropies():
    wide = (BOX[0], spaces.Box(-1.0, 1.0, (2, 3), np.float32))
    assert make(BOX).target_entropy == -1.0
    assert make(wide).target_entropy == -6.0
    assert make(DISCRETE).target_entropy == pytest.approx(0.5 * math.log(2))
    assert make(DISCRETE, target_entropy_share=0.9).target_entropy == pytest.approx(
        0.9 * math.log(2)
    )
    assert make(BOX, target_entropy=-3.0).target_entropy == -3.0


@pytest.mark.parametrize(
    ("where", "options", "key"),
    [
        (DISCRETE, {"exploration_noise": 0.1}, "exploration_noise"),
        (DISCRETE, {"exploration_noise": 0.1, "noise_correlation": 0.5}, "exploration_noise"),
        (BOX, {"target_entropy_share": 0.3}, "target_entropy_share"),
        (BOX, {"model": {"dueling": True}}, "model.dueling"),
    ],
)
def test_options_of_other_action_spaces_are_refused(where, options, key):
    make(BOX if where is DISCRETE else DISCRETE, **options)
    with pytest.raises(ConfigError, match=rf"^'policy.{key}' has no effect, since actions are in "):
        make(where, **options)


@both
def test_targets_go_the_share_tau_of_the_way_at_every_update(where):
    case = CASES["sac"] if where is BOX else CASES["sac_discrete"]
    policy, buffer = warmed_up(case)
    before = weights(policy)
    policy.update(16, buffer)
    after, tau = weights(policy), policy.config.tau
    for name in policy.critic.state_dict():
        target = f"critic_target.{name}"
        expected = before[target] + tau * (after[f"critic.{name}"] - before[target])
        assert_close(after[target], expected)


@both
def test_the_actors_step_leaves_the_critics_alone(where):
    case = CASES["sac"] if where is BOX else CASES["sac_discrete"]
    policy, buffer = warmed_up(case)
    policy.optimizers["critic"].learning_rate = 0.0
    before = weights(policy)
    policy.update(16, buffer)
    changed = {n for n, v in weights(policy).items() if not np.array_equal(v, before[n])}
    assert any(name.startswith("actor.") for name in changed)
    assert not any(name.startswith("critic.") for name in changed)


def test_while_testing_it_takes_the_mean_and_the_most_likely():
    policy = make(BOX).eval()
    answer(policy.actor, "head.linear.bias", math.atanh(0.5), 0.0)
    obs = Batch(obs=np.zeros((3, 3), np.float32))
    assert_close(policy(obs).act, np.full((3, 1), 1.0))  # of 2
    policy = make(DISCRETE).eval()
    answer(policy.actor, "head.linear.bias", 0.0, 0.1)
    assert policy(Batch(obs=np.zeros((3, 4), np.float32))).act.tolist() == [1, 1, 1]


def test_discrete_actions_are_drawn_by_their_chances():
    policy = make(DISCRETE)
    answer(policy.actor, "head.linear.bias", 0.0, math.log(3))
    assert policy(Batch(obs=np.zeros((4000, 4), np.float32))).act.mean() == pytest.approx(
        0.75, abs=0.03
    )


def test_it_acts_in_bounded_boxes_and_discrete_spaces_only():
    with pytest.raises(ValueError, match="sac supports"):
        make((BOX[0], spaces.Box(-np.inf, np.inf, (1,), np.float32)))
    with pytest.raises(ValueError, match="sac supports"):
        make((BOX[0], spaces.MultiDiscrete([2, 2])))


def test_the_likelihood_is_that_of_all_axes_of_an_action():
    space = spaces.Box(-2.0, 2.0, (2, 3), np.float32)
    policy = create_policy(
        {"type": "sac", "model": {"hidden": [8]}}, spaces.Box(-1, 1, (4,)), space
    )
    obs, act = torch.zeros(5, 4), torch.zeros(5, 2, 3)
    assert policy.log_prob(obs, act).shape == (5,)
