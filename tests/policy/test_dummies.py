"""Rows that are no transitions reach no loss, no statistic and no normaliser."""

import copy

import numpy as np
import pytest

from guerdon.collect import Collector
from guerdon.data.kernels import VALID
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.reward import make_reward
from tests.policy.cases import CASES, N_ENVS, assert_same_weights, collected, hashed, make_policy
from tests.policy.spaces_env import ACTIONS, OBSERVATIONS

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
REWARD = {
    "terms": {"env": {}, "random": {"type": "function", "target": hashed, "fields": ("obs",)}},
    "normalize": True,
}


def with_dummies(policy, case):
    """What a policy collected, with a row for every reset, as NEXT_STEP environments give them.

    But not for the first environment, so that they have written different numbers of rows.
    """
    source = collected(policy, case)
    buffer = policy.make_buffer(256, N_ENVS, seed=3)
    rollout, _ = source.rollout()
    for step in range(len(rollout.rew)):
        rows = rollout[step]
        names = ["obs", "act", "rew", "terminated", "truncated", "obs_next"]
        fields = {key: rows[key] for key in [*names, *(["policy"] if rows.policy.keys() else [])]}
        buffer.add(env_ids=np.arange(N_ENVS), dummy=~rows.mask, **fields)
        ended = np.flatnonzero((rows.terminated | rows.truncated) & rows.mask)
        ended = ended[ended > 0]
        if len(ended):
            again = {key: value[ended] for key, value in fields.items()}
            buffer.add(env_ids=ended, dummy=np.ones(len(ended), bool), **again)
    return buffer


def poisoned(buffer, number, whole_number):
    """A copy in which every slot without a transition holds these numbers."""
    buffer = copy.deepcopy(buffer)
    ring = buffer._ring
    empty = ring.flags & VALID == 0
    assert empty.any()
    for column in ring.columns:
        whole = np.issubdtype(column.rows.dtype, np.integer)
        column.rows[empty] = whole_number if whole else number
    return buffer


@pytest.mark.parametrize("number", [np.nan, 1e30], ids=["nan", "huge"])
@every_case
def test_what_lies_in_rows_that_are_no_data_changes_nothing(case, number):
    config = {**case.options, "model": {"hidden": [16], "normalize_obs": True}}
    clean = with_dummies(make_policy(case), case)
    batch, _ = clean.rollout()
    assert not batch.mask.all()
    assert len(set(clean.written.tolist())) > 1

    learned = []
    for buffer in (clean, poisoned(clean, number, 10**6)):
        policy = make_policy(type(case)(case.type, case.env, config))
        reward = make_reward(REWARD)
        reward.collect_data(buffer.rollout()[0])
        metrics = [policy.update(16, buffer, reward) for _ in range(3)]
        learned.append((policy, reward, metrics))

    (one, first_reward, first), (other, second_reward, second) = learned
    assert_same_weights(one, other)
    assert first_reward.scaler.scale == second_reward.scaler.scale
    for here, there in zip(first, second, strict=True):
        assert {k: float(v) for k, v in here.items()} == {k: float(v) for k, v in there.items()}


@every_case
def test_normalisers_see_real_rows_only(case):
    config = {**case.options, "model": {"hidden": [16], "normalize_obs": True}}
    policy = make_policy(type(case)(case.type, case.env, config))
    buffer = poisoned(with_dummies(policy, case), 1e30, 10**6)
    policy.update(16, buffer)
    networks = [policy.model] if hasattr(policy, "model") else [policy.actor, policy.critic]
    for network in networks:
        normalizer = network.normalizer
        assert normalizer.count == (len(buffer) if policy.on_policy else 16)
        assert float(normalizer.mean.abs().max()) < 10
    if policy.on_policy:
        obs = buffer[buffer.stored_rows()].obs.astype(np.float64)
        np.testing.assert_allclose(policy.model.normalizer.mean, obs.mean(0), rtol=1e-6)
        np.testing.assert_allclose(policy.model.normalizer.variance, obs.var(0), rtol=1e-6)


def test_a_normaliser_merges_what_update_after_update_shows_it():
    case = CASES["ppo"]
    config = {**case.options, "model": {"hidden": [16], "normalize_obs": True}}
    policy = make_policy(type(case)(case.type, case.env, config))
    seen = []
    for seed in range(3):
        buffer = collected(policy, case, seed=seed)
        seen.append(buffer[buffer.stored_rows()].obs.astype(np.float64))
        policy.update(64, buffer, repeat=3)  # passes over the same rows do not count again
    rows = np.concatenate(seen)
    assert policy.model.normalizer.count == len(rows)
    np.testing.assert_allclose(policy.model.normalizer.mean, rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(policy.model.normalizer.variance, rows.var(0), rtol=1e-6)


def test_a_normaliser_does_not_change_while_acting():
    case = CASES["ppo"]
    config = {"model": {"hidden": [16], "normalize_obs": True}}
    policy = make_policy(type(case)(case.type, case.env, config))
    collected(policy, case)
    assert policy.model.normalizer.count == 0


def test_a_native_environment_makes_such_rows_and_they_are_not_counted():
    env = make_vec("CartPole-v1", 4, backend="native")
    policy = create_policy({"type": "ppo"}, env.observation_space, env.action_space)
    buffer = policy.make_buffer(400, 4, 0)
    got = Collector(policy, env, buffer, seed=1).collect(n_step=200)
    batch, indices = buffer.rollout()
    assert not batch.mask.all()
    assert got.n_step == len(buffer) == batch.mask.sum()
    processed = policy.process_fn(batch, buffer, indices)
    assert len(processed.advantage) == len(buffer)


def test_empty_slots_of_actions_that_count_from_five_are_not_looked_at():
    # The 0 in a slot that was never written is no action of this space.
    policy = create_policy({"type": "ppo"}, OBSERVATIONS["vector"], ACTIONS["discrete_from_5"])
    buffer = policy.make_buffer(20, 2, 0)
    for env_ids in ([0, 1], [0], [0], [1]):
        number = len(env_ids)
        buffer.add(
            env_ids=env_ids, obs=np.zeros((number, 3), np.float32), act=np.full(number, 6),
            rew=np.ones(number), terminated=np.zeros(number, bool),
            truncated=np.zeros(number, bool), obs_next=np.zeros((number, 3), np.float32),
        )  # fmt: skip
    batch, indices = buffer.rollout(policy.fields)
    processed = policy.process_fn(batch, buffer, indices)
    assert processed.act.tolist() == [1] * 5
