"""Rows that are no transitions reach no loss, no statistic and no normaliser."""

import copy

import numpy as np
import pytest

from guerdon.collect import Collector
from guerdon.data import ReplayBuffer, Rollout
from guerdon.data.kernels import VALID
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.reward import make_reward
from tests.policy.cases import (
    CASES,
    N_ENVS,
    Case,
    assert_same_weights,
    collected,
    hashed,
    make_env,
    make_policy,
)
from tests.policy.hand import processed
from tests.policy.spaces_env import ACTIONS, OBSERVATIONS
from tests.rounding import assert_close

REWARD = {
    "terms": {"env": {}, "random": {"type": "function", "target": hashed, "fields": ("obs",)}},
    "normalize": True,
}
FIELDS = ("obs", "act", "rew", "terminated", "truncated", "obs_next")


def normalizing(case):
    return Case(
        case.type, case.env, {**case.options, "model": {"hidden": [16], "normalize_obs": True}}
    )


def with_gaps(case, container):
    """What a policy collected, with rows that are no transitions in every environment.

    Environments that have finished their share of episodes are idle, some rows in the middle of
    episodes and at their ends are dropped, and the first environment has written more rows.
    """
    policy = make_policy(case)
    buffer = policy.make_buffer(64, N_ENVS, 3) if container is Rollout else collected(policy, case)
    if container is Rollout:
        Collector(policy, make_env(case), buffer, seed=5).collect(n_episode=10)
    rows = buffer.rollout()[1][:, 1:]
    batch, _ = buffer.rollout()
    ends = (batch.terminated | batch.truncated)[:, 1:]
    buffer.discard(np.concatenate([rows[[2, 3, 9]].ravel(), rows[ends & batch.mask[:, 1:]][:2]]))
    last = buffer.newest_rows(0, 1)
    fields = {name: part for name, part in buffer[last].items() if name in (*FIELDS, "policy")}
    buffer.add(
        {name: part for name, part in fields.items() if name != "policy" or part.keys()}, [0]
    )
    return buffer


def poisoned(buffer, number, whole_number):
    """A copy in which all that belongs to no transition has these values."""
    buffer = copy.deepcopy(buffer)
    if isinstance(buffer, Rollout):
        empty = ~buffer._flags["mask"]
        parts = [(column, empty) for column in buffer._columns.values()]
        for name in ("terminated", "truncated"):
            buffer._flags[name][empty] = True
    else:
        # The observation of a dropped row is the next one of the row before it.
        unwritten = (np.arange(buffer.capacity) >= buffer.written[:, None]).ravel()
        unused = np.ones(buffer._n_finals, bool)
        unused[buffer._final[buffer._final > 0] - 1] = False
        parts = [(column, unwritten) for column in buffer._columns.values()]
        parts += [(table, unused) for table in buffer._finals.values()]
    for column, empty in parts:
        assert empty.any()
        column[empty] = whole_number if column.dtype.kind in "iu" else number
    return buffer


EVERY = [(name, ReplayBuffer) for name in CASES]
EVERY += [(name, Rollout) for name in CASES if make_policy(CASES[name]).on_policy]
everywhere = pytest.mark.parametrize(
    ("name", "container"), EVERY, ids=[f"{name}-{kind.__name__}" for name, kind in EVERY]
)


@pytest.mark.parametrize("number", [np.nan, 1e30], ids=["nan", "huge"])
@everywhere
def test_what_is_stored_in_masked_rows_changes_nothing(name, container, number):
    clean = with_gaps(CASES[name], container)
    batch, _ = clean.rollout()
    assert (~batch.mask).any(0)[1:].all()
    learned = []
    for buffer in (clean, poisoned(clean, number, 10**6)):
        policy, reward = make_policy(normalizing(CASES[name])), make_reward(REWARD)
        reward.collect_data(buffer.rollout()[0])
        metrics = [policy.update(16, buffer, reward) for _ in range(3)]
        learned.append((policy, reward, metrics, reward.reward_stats()))

    (one, first_reward, first, stats), (other, second_reward, second, other_stats) = learned
    assert_same_weights(one, other)
    assert first_reward.scaler.scale == second_reward.scaler.scale
    for here, there in zip([*first, stats], [*second, other_stats], strict=True):
        assert {k: float(v) for k, v in here.items()} == {k: float(v) for k, v in there.items()}


@everywhere
def test_normalizers_read_transitions_only(name, container):
    policy = make_policy(normalizing(CASES[name]))
    buffer = poisoned(with_gaps(CASES[name], container), 1e30, 10**6)
    policy.update(16, buffer)
    networks = [policy.model] if hasattr(policy, "model") else [policy.actor, policy.critic]
    for network in networks:
        normalizer = network.normalizer
        assert normalizer.count == (len(buffer) if policy.on_policy else 16)
        assert float(normalizer.mean.abs().max()) < 10
    if policy.on_policy:
        batch, _ = buffer.rollout()
        obs = batch.obs[batch.mask].astype(np.float64)
        assert_close(policy.model.normalizer.mean, obs.mean(0))
        assert_close(policy.model.normalizer.variance, obs.var(0))


def test_a_normalizer_merges_what_each_update_reads():
    policy = make_policy(normalizing(CASES["ppo"]))
    seen = []
    for seed in range(3):
        buffer = collected(policy, CASES["ppo"], seed=seed)
        seen.append(buffer[buffer.stored_rows()].obs.astype(np.float64))
        policy.update(64, buffer, repeat=3)  # passes over the same rows do not count again
    rows = np.concatenate(seen)
    assert policy.model.normalizer.count == len(rows)
    assert_close(policy.model.normalizer.mean, rows.mean(0))
    assert_close(policy.model.normalizer.variance, rows.var(0))


def test_a_normalizer_does_not_change_while_acting():
    policy = make_policy(normalizing(CASES["ppo"]))
    collected(policy, CASES["ppo"])
    assert policy.model.normalizer.count == 0


@pytest.mark.parametrize("type_", ["ppo", "dqn"])
def test_reset_rows_of_an_environment_are_masked_or_not_added(type_):
    env = make_vec("CartPole-v1", 4, backend="native")
    policy = create_policy({"type": type_}, env.observation_space, env.action_space)
    buffer = policy.make_buffer(400, 4, 0)
    resets = []
    collector = Collector(
        policy, env, buffer, seed=1, watch=lambda _, __, dummy: resets.append(dummy is not None)
    )
    collected = collector.collect(n_step=200)
    assert any(resets)
    assert collected.n_step == len(buffer)
    if type_ == "ppo":
        batch, _ = buffer.rollout()
        assert len(batch.mask) == len(resets)
        assert len(buffer) == batch.mask.sum() < batch.mask.size
        assert len(processed(policy, buffer).advantage) == len(buffer)
    else:
        assert buffer.written.sum() == len(buffer)
        assert (buffer._flags[buffer._flags > 0] & VALID).all()


def test_the_zeros_of_masked_rows_are_not_read_as_actions():
    # 0 is no action of this space.
    policy = create_policy({"type": "ppo"}, OBSERVATIONS["vector"], ACTIONS["discrete_from_5"])
    buffer = policy.make_buffer(20, 2, 0)
    for env_ids in ([0, 1], [0], [0], [1]):
        number = len(env_ids)
        row = {
            "obs": np.zeros((number, 3), np.float32), "act": np.full(number, 6),
            "rew": np.ones(number), "terminated": np.zeros(number, bool),
            "truncated": np.zeros(number, bool), "obs_next": np.zeros((number, 3), np.float32),
            "policy": {"logit": np.zeros((number, policy.action_space.n), np.float32)},
        }  # fmt: skip
        buffer.add(row, np.array(env_ids))
    assert processed(policy, buffer).act.tolist() == [1] * 5
