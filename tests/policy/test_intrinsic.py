import numpy as np
import pytest
import torch

from guerdon.config.errors import ConfigError
from guerdon.policy import create_policy
from guerdon.reward import make_reward
from tests.policy.cases import CASES, assert_same_weights, collected, hashed, make_policy, spaces_of
from tests.policy.hand import answer, five_steps
from tests.rounding import assert_close

REWARD = {"terms": {"env": {}, "bonus": {"type": "constant", "value": 2.0, "weight": 0}}}
DISCRETE = spaces_of(CASES["ppo"].env)


def make(gae_lambda=0.5, model=None, **options):
    intrinsic = {"terms": ["bonus"], "gamma": 0.5, **options}
    model = {"hidden": [4], **(model or {})}
    config = {"type": "ppo", "gamma": 0.5, "gae_lambda": gae_lambda, "model": model}
    return create_policy(config | {"intrinsic": intrinsic}, *DISCRETE)


def processed(policy, buffer, reward):
    batch, indices = policy.read(0, buffer, policy.fields + reward.fields)
    batch = reward.resolve(reward.transform(batch, indices, buffer).to_device(policy.device))
    return batch, policy.process_fn(batch, reward.view(buffer, policy.device), indices)


@pytest.mark.parametrize("coefficient", [1.0, 0.1])
def test_advantages_of_the_bonus_are_added_and_run_past_every_end(coefficient):
    policy = make(coefficient=coefficient)
    answer(policy.model, "value_head.bias", 10.0)
    answer(policy.intrinsic, "head.linear.bias", 10.0)
    _, rows = processed(policy, five_steps(policy), make_reward(REWARD))
    # The error is 2 + 0.5 * 10 - 10 everywhere, and a quarter of the next one's sum comes with it.
    bonus = np.array([-3.99609375, -3.984375, -3.9375, -3.75, -3.0])
    extrinsic = np.array([-6.0, -8.0, -2.25, -1.0, 0.0])
    assert_close(rows.advantage, extrinsic + coefficient * bonus)
    assert_close(rows.returns, extrinsic + 10.0)
    assert_close(rows.intrinsic_returns, bonus + 10.0)
    assert rows.intrinsic_value.tolist() == [10.0] * 5


@pytest.mark.parametrize(
    ("episodic", "following"),
    [
        # Observations are 0, 1, 2, 3 and 4; the third and the fifth begin an episode.
        (False, [1.0, 2.0, 3.0, 4.0, 5.0]),
        (True, [1.0, 0.0, 3.0, 3.5, 5.0]),
    ],
)
def test_the_next_value_is_that_of_the_next_episode_unless_it_is_episodic(episodic, following):
    policy = make(gae_lambda=0.0, episodic=episodic)
    answer(policy.model, "value_head.bias", 0.0)
    policy.intrinsic.value = lambda obs: 10.0 * obs[:, 0]
    _, rows = processed(policy, five_steps(policy), make_reward(REWARD))
    expected = 2.0 + 5.0 * np.array(following) - 10.0 * np.arange(5)
    assert_close(rows.intrinsic_returns - rows.intrinsic_value, expected)


@pytest.mark.parametrize("episodic", [False, True])
def test_rollouts_with_ends_of_all_kinds_are_as_by_hand(episodic):
    policy = make(gae_lambda=0.9, episodic=episodic)
    buffer = collected(policy, CASES["ppo"])
    bonus = {"type": "function", "target": hashed, "fields": ("obs",), "weight": 0}
    reward = make_reward({"terms": {"env": {}, "bonus": bonus}})
    batch, rows = processed(policy, buffer, reward)
    assert not batch.mask.all()
    assert batch.terminated[batch.mask].any()
    with torch.no_grad():
        value = policy.intrinsic.value(batch.obs).numpy()
        last = policy.intrinsic.value(batch.obs_next).numpy()
    batch = batch.to_numpy()
    expected = np.zeros(batch.mask.shape)
    for env in range(batch.mask.shape[1]):
        steps = np.flatnonzero(batch.mask[:, env])
        advantage, following = 0.0, None
        for t in steps[::-1]:
            cut = following is None or (episodic and batch.cut[t, env])
            after = last[t, env] if cut else value[following, env]
            discount = 0.0 if episodic and batch.terminated[t, env] else 0.5
            error = batch.rew_terms.bonus[t, env] + discount * after - value[t, env]
            advantage = error + (0.0 if cut else discount * 0.9 * advantage)
            expected[t, env], following = advantage, t
    found = rows.intrinsic_returns - rows.intrinsic_value
    assert_close(found, expected[batch.mask], rtol=1e-4, atol=1e-5)


def test_the_second_value_learns_the_return_of_the_bonus():
    policy = make(gae_lambda=0.95)
    policy.optimizers["model"].learning_rate = 1e-2
    buffer, reward = five_steps(policy), make_reward(REWARD)
    for _ in range(60):
        policy.update(5, buffer, reward, repeat=3)
    _, rows = processed(policy, buffer, reward)
    np.testing.assert_allclose(rows.intrinsic_value, 4.0, atol=0.5)  # 2 + 1 + 0.5 + ...


def test_its_loss_is_added_to_the_critics():
    policy = make()
    answer(policy.model, "value_head.bias", 3.0)
    answer(policy.intrinsic, "head.linear.bias", 1.0)
    rows = {
        "obs": torch.zeros(2, 4), "act": torch.tensor([0, 1]), "log_prob": torch.zeros(2),
        "advantage": torch.zeros(2), "value": torch.zeros(2), "returns": torch.tensor([3.0, 5.0]),
    }  # fmt: skip
    alone = policy.loss(rows)[1][1]
    rows |= {"intrinsic_value": torch.zeros(2), "intrinsic_returns": torch.tensor([1.0, 5.0])}
    assert policy.loss(rows)[1][1] - alone == pytest.approx(16.0 / 4)


def test_a_bonus_of_weight_0_reaches_the_gradient_through_the_second_value():
    before = make()
    buffer = five_steps(before)
    policies = []
    for value in (2.0, 3.0):
        terms = {"env": {}, "bonus": {"type": "constant", "value": value, "weight": 0}}
        policy = make()
        policy.load_training_state(before.training_state())
        policy.update(5, buffer, make_reward({"terms": terms}))
        policies.append(policy)
    with pytest.raises(AssertionError):
        assert_same_weights(*policies)


def test_its_normaliser_sees_the_observations_and_its_state_is_saved():
    policy = make(model={"normalize_obs": True})
    policy.update(5, five_steps(policy), make_reward(REWARD))
    assert policy.intrinsic.normalizer.count == 5
    other = make(model={"normalize_obs": True})
    other.load_training_state(policy.training_state())
    assert_same_weights(policy, other)


def test_a_term_that_is_not_there_is_an_error_that_names_it():
    policy = make(terms=["rnd"])
    with pytest.raises(ValueError, match=r"'rnd'.*\['env', 'bonus'\].*weight 0"):
        policy.update(5, five_steps(policy), make_reward(REWARD))
    with pytest.raises(ValueError, match=r"'rnd', but the reward has the terms \[\]"):
        policy.update(5, five_steps(policy))


def test_terms_have_to_be_named():
    with pytest.raises(ConfigError, match="terms"):
        create_policy({"type": "ppo", "intrinsic": {}}, *DISCRETE)


def test_by_default_there_is_none():
    policy = make_policy(CASES["ppo"])
    assert policy.intrinsic is None
    assert not any(name.startswith("intrinsic") for name in policy.state_dict())
