"""The law: another reward is another target, and another gradient; for every policy.

Rewards are resolved when data is read, before any return, advantage, target or priority.
"""

import copy

import numpy as np
import pytest
import torch

from guerdon.policy import DQN, POLICIES
from guerdon.reward import Setting, make_reward
from tests.policy.cases import CASES, WITHOUT_REWARD, hashed, twin, warmed_up
from tests.policy.reference import gradient, targets, watched_update
from tests.rounding import assert_close

CPU = torch.device("cpu")
HASH = {"type": "function", "target": hashed, "fields": ("obs",)}
REWARDS = {
    # Small: far from its target, the gradient of DQN's Huber loss is the same for all targets.
    "constant": {"type": "constant", "value": 0.1},
    "function": HASH,
    "composition": {
        "terms": {
            "env": {"weight": 0.5},
            "constant": {"value": -1.0, "weight": 2.0},
            "random": {**HASH, "weight": 3.0},
        }
    },
    "scale_clip": {**HASH, "scale": 10.0, "clip": (-6.0, 4.0)},
    "normalize": {**HASH, "normalize": True},
}

PAIRS = [
    # Fast: every policy with a reward of its own, and with one of the others in turn.
    pytest.param(
        case,
        name,
        marks=() if name == "function" or (i + j) % 5 == 0 else pytest.mark.slow,
    )
    for i, case in enumerate(CASES)
    for j, name in enumerate(REWARDS)
]


def by_hand(name, env, random, scale):
    """The resolved reward of rows, from the environment's and the random one."""
    return {
        "constant": np.full_like(env, 0.1),
        "function": random,
        "composition": 0.5 * env - 2.0 + 3.0 * random,
        "scale_clip": np.clip(10.0 * random, -6.0, 4.0),
        "normalize": scale * random,
    }[name]


@pytest.fixture(scope="module")
def warm():
    """Policies and their buffers, made once: tests copy them."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = warmed_up(CASES[name])
        policy, buffer = made[name]
        return twin(policy, CASES[name]), copy.deepcopy(buffer)

    return get


def make(name, buffer):
    reward = make_reward(REWARDS[name], Setting(gamma=0.9))
    if reward.collects:
        reward.collect_data(buffer.rollout()[0])
        reward.train()
    return reward


def resolved(name, buffer, reward):
    """By hand, the resolved reward of every row of a buffer; NaN where there is no transition."""
    rows = buffer.stored_rows()
    rewards = np.full(buffer.size, np.nan)
    scale = reward.scaler.scale if reward.scaler else 1.0
    batch = buffer[rows]
    rewards[rows] = by_hand(name, batch.rew.astype(float), hashed(batch).astype(float), scale)
    return rewards


def test_every_built_in_policy_is_here():
    built_in = {
        name for name in POLICIES.names() if POLICIES.get(name).__module__.startswith("guerdon.")
    }
    assert built_in == {case.type for case in CASES.values()} | set(WITHOUT_REWARD)
    assert WITHOUT_REWARD.keys() == {n for n in built_in if not POLICIES.get(n).uses_reward}


def test_the_rollouts_have_ends_of_all_kinds(warm):
    batch, _ = warm("ppo")[1].rollout()
    real = batch.mask
    assert batch.terminated[real].any()
    assert batch.truncated[real].any()
    assert not real.all()
    assert (batch.cut & ~batch.terminated & ~batch.truncated)[real].any()
    assert warm("ppo_continuous")[1].rollout()[0].truncated.any()


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_targets_and_gradients_are_those_of_the_resolved_reward(case, name, warm):
    policy, buffer = warm(case)
    before, reward = twin(policy, CASES[case]), make(name, buffer)

    seen = watched_update(policy, buffer, reward)

    expected = targets(before, buffer, seen, resolved(name, buffer, reward))
    for key, value in expected.items():
        assert_close(seen.processed[key], value, rtol=1e-4, atol=1e-4, err_msg=key)
    for key, value in gradient(before, seen, expected).items():
        torch.testing.assert_close(
            seen.gradient[key], value, rtol=1e-3, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}"
        )


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_another_reward_changes_every_target_and_the_gradient(case, name, warm):
    environment, reward = make_reward({"type": "env"}), make(name, warm(case)[1])

    one, other = (watched_update(*warm(case), each) for each in (environment, reward))

    np.testing.assert_array_equal(one.indices, other.indices)
    for key in ("returns", "advantage") if "advantage" in one.processed else ("target",):
        assert ((one.processed[key] - other.processed[key]).abs() > 1e-4).all(), key
    assert any((one.gradient[k] - other.gradient[k]).abs().max() > 1e-4 for k in one.gradient)


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_what_the_environment_paid_and_each_term_are_kept(case, name, warm):
    policy, buffer = warm(case)
    reward, paid = make(name, buffer), buffer.rew.copy()

    seen = watched_update(policy, buffer, reward)

    batch = seen.read.to_numpy()
    real = batch.get("mask", np.ones(seen.indices.shape, bool))
    rows = seen.indices[real]
    np.testing.assert_array_equal(batch.rew_env[real], buffer[rows].rew.astype(np.float32))
    expected = resolved(name, buffer, reward)[rows]
    assert_close(batch.rew[real], expected)
    random = hashed(buffer[rows])
    env = buffer[rows].rew.astype(np.float32)
    terms = {"env": env, "random": random, "function": random}
    assert set(batch.rew_terms.keys()) == set(reward.terms)
    for term, (model, _) in reward.terms.items():
        value = np.float32(model.config.value) if term == "constant" else terms[term]
        np.testing.assert_array_equal(batch.rew_terms[term][real], value, err_msg=term)
    np.testing.assert_array_equal(buffer.rew, paid)


@pytest.mark.parametrize("case", ["dqn_prioritized", "dqn_3_step_prioritized"])
def test_priorities_are_errors_of_the_resolved_reward(case, warm):
    policy, buffer = warm(case)
    before = twin(policy, CASES[case])
    reward = make_reward({**HASH, "scale": 50.0})

    seen = watched_update(policy, buffer, reward)

    rewards = np.full(buffer.size, np.nan)
    rewards[buffer.stored_rows()] = 50.0 * hashed(buffer[buffer.stored_rows()])
    expected = targets(before, buffer, seen, rewards)["target"]
    rows = seen.indices if seen.indices.ndim == 1 else seen.indices[0]
    with torch.no_grad():
        q_value = before.model(seen.processed.obs)["logit"].numpy()
    error = np.abs(q_value[np.arange(len(rows)), seen.processed.act] - expected)
    assert_close(buffer.priorities[rows], error**policy.config.alpha, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_without_a_reward_the_environment_has_the_word(case, warm):
    one, other = warm(case), warm(case)
    seen = [watched_update(*one, None), watched_update(*other, make_reward({"type": "env"}))]
    for key in seen[0].gradient:
        torch.testing.assert_close(seen[0].gradient[key], seen[1].gradient[key], rtol=0, atol=0)
    np.testing.assert_array_equal(seen[0].read.rew_env, seen[1].read.rew_env)


def test_a_reward_that_changes_tomorrow_changes_old_transitions(warm):
    _, buffer = warm("dqn")
    worth = {"value": 1.0}
    reward = make_reward(
        {"type": "function", "target": lambda data: np.full(data.rew.shape, worth["value"])}
    )
    rows = buffer.stored_rows()[:3]
    assert reward.view(buffer, CPU).rew[rows].tolist() == [1.0, 1.0, 1.0]
    worth["value"] = -7.0
    assert reward.view(buffer, CPU).rew[rows].tolist() == [-7.0, -7.0, -7.0]


# --- what `process_fn` sees of the buffer


@pytest.fixture
def line():
    """A policy, and ten steps of one environment in one episode, which paid 0, 1, 2, ..."""
    policy = warmed_up(CASES["dqn"])[0]
    buffer = policy.make_buffer(10, 1, 0)
    for i in range(10):
        buffer.add(
            obs=np.full(4, i, np.float32), act=0, rew=float(i), terminated=False, truncated=i == 9,
            obs_next=np.full(4, i + 1, np.float32), policy={"extra": i},
        )  # fmt: skip
    return policy, buffer


class TwoStep(DQN):
    """The example of the Tianshou document: `process_fn` reads the buffer by row numbers."""

    def process_fn(self, batch, buffer, indices):
        length = len(buffer)
        after = buffer[(indices + 2) % length]
        assert np.array_equal(after.obs, buffer.obs[(indices + 2) % length])
        with torch.no_grad():
            best = self.model(self.observation(after.obs))["logit"].max(-1).values
        gamma = self.config.gamma
        rewards = buffer.rew[(indices + 1) % length]
        batch.returns = batch.rew + gamma * rewards + gamma**2 * best
        return batch

    def learn(self, batch, **_):
        self.learned_from = batch
        return {}


def test_the_documented_two_step_process_fn_sees_resolved_rewards(line):
    model, buffer = line
    policy = TwoStep({"gamma": 0.5}, model.observation_space, model.action_space, model=model.model)
    policy.update(0, buffer, make_reward({**HASH, "scale": 2.0}))
    rewards = 2.0 * hashed(buffer[np.arange(10)])
    with torch.no_grad():
        values = model.model(torch.as_tensor(buffer[np.arange(10)].obs))["logit"].amax(-1).numpy()
    expected = [
        rewards[i] + 0.5 * rewards[(i + 1) % 10] + 0.25 * values[(i + 2) % 10] for i in range(10)
    ]
    assert_close(policy.learned_from.returns, expected)
    np.testing.assert_array_equal(policy.learned_from.rew_env, np.arange(10.0))


def test_every_way_to_read_the_view_gives_resolved_rewards(line):
    _, buffer = line
    view = make_reward({"type": "constant", "value": 7.0}).view(buffer, CPU)
    rows = np.array([1, 4])
    assert view.rew[rows].tolist() == [7.0, 7.0]
    assert view[rows].rew.tolist() == [7.0, 7.0]
    assert view[rows].rew_env.tolist() == [1.0, 4.0]
    assert view.get(rows, "rew").tolist() == [7.0, 7.0]
    assert view.get(rows, "rew_env").tolist() == [1.0, 4.0]
    assert (view.rollout()[0].rew == 7.0).all()
    assert (view.sample(3)[0].rew == 7.0).all()
    assert (view.sample(3, length=2, fields=("obs",))[0].rew == 7.0).all()


def test_everything_else_of_the_view_is_the_buffers_own(line):
    _, buffer = line
    view = make_reward(HASH).view(buffer, CPU)
    assert len(view) == len(buffer) == 10
    np.testing.assert_array_equal(view.obs, buffer.obs)
    np.testing.assert_array_equal(view.get(np.array([3]), "obs_next"), np.full((1, 4), 4.0))
    assert view.get(np.array([3]), "policy").extra.tolist() == [3]
    assert view.next(3) == 4
    np.testing.assert_array_equal(buffer.rew, np.arange(10.0))
