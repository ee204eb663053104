"""The law, for every policy with every reward model: what the model says is what is learned from.

`tests/policy/test_law.py` has the same for rewards that are not learned.
"""

import copy

import numpy as np
import pytest
import torch

from guerdon.data import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.reward import REWARDS, Setting, make_reward
from tests.policy.cases import CASES, N_ENVS, collected, make_policy, spaces_of, twin, warmed_up
from tests.policy.reference import gradient, targets, watched_update
from tests.rounding import assert_close

SMALL = {"hidden_size": [8], "update_per_collect": 2, "batch_size": 16}
CURIOUS = {**SMALL, "warmup": 0, "train_every": 1}
MODELS = {
    "gail": SMALL,
    "gail_absorbing": {**SMALL, "type": "gail", "absorbing": True},
    "airl": SMALL,
    "airl_without_density": {**SMALL, "type": "airl", "log_prob": False},
    "fairl": SMALL,
    "gcl": SMALL,
    "red": SMALL,
    "red_floor": {**SMALL, "type": "red", "ood": "floor"},
    "pwil": {"subsample": 3},
    "pdeil": {},
    "trex": {**SMALL, "min_snippet_length": 3, "max_snippet_length": 5, "num_snippets": 40},
    "drex": {
        **SMALL,
        "min_snippet_length": 3,
        "max_snippet_length": 5,
        "num_snippets": 40,
        "min_accuracy": 0.0,
    },
    "preference": {**SMALL, "segment_length": 4, "comparisons": 40, "train_every": 10},
    "rnd": CURIOUS,
    "icm": CURIOUS,
    "ngu": CURIOUS,
    "ensemble": {"members": 2, "of": {"type": "gail", **SMALL}},
}
ELSEWHERE = {
    "env": "tests/policy/test_law.py",
    "constant": "tests/policy/test_law.py",
    "function": "tests/policy/test_law.py",
    "her": "needs goals: tests/reward/test_her.py",
    "sqil": "reads demonstrations beside what the policy did: tests/reward/test_sqil.py",
    "guided_cost": "another name of gcl",
    "classifier": "looks at pictures: tests/reward/test_classifier.py",
}
NO_DENSITY = ("dqn", "ddpg", "td3")
EXCLUDED = {
    (model, policy): "it needs to know how likely actions are, which this policy cannot say"
    for model in ("airl", "gcl")
    for policy in NO_DENSITY
}
"""Pairs of reward model and policy that there is no such test for, and why."""


def fast_pairs():
    """Of each model, in turn: a policy that learns on-policy, and two that do not."""
    for number, name in enumerate(MODELS):
        cases = [case for case in CASES if (name, CASES[case].type) not in EXCLUDED]
        on_policy = [case for case in cases if CASES[case].type in ("a2c", "impala", "ppo")]
        others = [case for case in cases if case not in on_policy]
        yield on_policy[number % len(on_policy)], name
        for place in (number, number + len(others) // 2):
            yield others[place % len(others)], name


FAST = set(fast_pairs())
"""The pairs of the fast tests; all others are slow."""

PAIRS = [
    pytest.param(case, name, marks=() if (case, name) in FAST else pytest.mark.slow)
    for case in CASES
    for name in MODELS
    if (name, CASES[case].type) not in EXCLUDED
]


def kind(name):
    return MODELS[name].get("type", name)


def demonstrated(case):
    """Episodes of another policy, of several levels of noise and return."""
    buffer = collected(make_policy(CASES[case], seed=7), CASES[case], seed=11)
    rows = buffer[buffer.rows_in_time()[:96]]
    fields = ("obs", "act", "rew", "terminated", "truncated", "obs_next")
    episodes = []
    for i in range(8):
        episode = Batch({key: rows[key][12 * i : 12 * i + 12].copy() for key in fields})
        episode.terminated[:] = False
        episode.truncated[:] = np.arange(12) == 11
        episode.rew[:] = float(8 - i)
        episode.noise = np.full(12, float(i // 2))
        episodes.append(episode)
    return Demonstrations(episodes)


def setting_of(case, policy):
    return Setting(
        *spaces_of(CASES[case].env), n_envs=N_ENVS, gamma=0.9, seed=3,
        on_policy=policy.on_policy, horizon=CASES[case].env[1],
        log_prob=policy.log_prob if policy.has_density else None,
    )  # fmt: skip


def make(case, name, policy, buffer):
    """The reward, trained on what the policy did; its annotations are in the buffer."""
    # Small: far from its target, the gradient of DQN's Huber loss is the same for all targets.
    section = {"type": kind(name), **MODELS[name], "scale": 0.1}
    reward = make_reward(section, setting_of(case, policy))
    for term in reward.terms.values():
        if "demonstrations" in term.model.requirements(term.model.config):
            term.model.load_expert_data(demonstrated(case))
    batch, rows = buffer.rollout()
    batch, _ = reward.annotate(batch, reward.new_memory(N_ENVS))
    if "annotations" in batch:
        buffer.annotate(rows[batch.mask], batch.annotations[batch.mask].to_dict())
    reward.collect_data(batch, rows, buffer)
    reward.train()
    return reward


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


def test_every_built_in_reward_model_is_here():
    built_in = {
        name for name in REWARDS.names() if REWARDS.get(name).__module__.startswith("guerdon.")
    }
    assert built_in == {kind(name) for name in MODELS} | set(ELSEWHERE)


def test_fast_tests_have_every_policy_and_every_model():
    assert {case for case, _ in FAST} == CASES.keys()
    assert {name for _, name in FAST} == MODELS.keys()


@pytest.mark.parametrize(("case", "name"), PAIRS)
@pytest.mark.filterwarnings("ignore:red: ")  # after so few steps
def test_what_the_model_says_is_what_is_learned_from(case, name, warm):
    policy, buffer = warm(case)
    before = twin(policy, CASES[case])
    reward = make(case, name, policy, buffer)
    rows = buffer.stored_rows()
    rewards = np.full(buffer.size, np.nan)
    rewards[rows] = reward.view(buffer, torch.device("cpu"))[rows].rew
    assert np.isfinite(rewards[rows]).all()
    assert np.ptp(rewards[rows]) > 1e-5, "a model that says the same of all tells nothing"
    paid = buffer.rew.copy()

    seen = watched_update(policy, buffer, reward)

    expected = targets(before, buffer, seen, rewards)
    for key, value in expected.items():
        assert_close(seen.processed[key], value, rtol=1e-3, atol=1e-3, err_msg=key)
    for key, value in gradient(before, seen, expected).items():
        torch.testing.assert_close(
            seen.gradient[key], value, rtol=1e-2, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}"
        )
    np.testing.assert_array_equal(buffer.rew, paid)


@pytest.mark.parametrize(("case", "name"), PAIRS)
@pytest.mark.filterwarnings("ignore:red: ")  # after so few steps
def test_another_reward_is_another_target_and_another_gradient(case, name, warm):
    policy, buffer = warm(case)
    reward = make(case, name, policy, buffer)

    environment = watched_update(*warm(case), make_reward({"type": "env"}))
    learned = watched_update(policy, buffer, reward)

    np.testing.assert_array_equal(environment.indices, learned.indices)
    for key in ("returns", "advantage") if policy.on_policy else ("target",):
        difference = (environment.processed[key] - learned.processed[key]).abs()
        assert (difference > 1e-5).float().mean() > 0.9, key
    assert any(
        (environment.gradient[k] - learned.gradient[k]).abs().max() > 1e-6
        for k in environment.gradient
    )


@pytest.mark.parametrize(("model", "policy"), EXCLUDED)
def test_pairs_that_cannot_be_are_refused(model, policy):
    case = next(name for name, case in CASES.items() if case.type == policy)
    made = make_policy(CASES[case])
    assert not made.has_density
    with pytest.raises(ValueError, match="needs the log-probability of actions"):
        make_reward({"type": model}, setting_of(case, made))
