"""An evaluation says how good a policy is, and leaves everything as it was."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from guerdon.collect import Collected, Collector
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.reward import make_reward
from guerdon.training import evaluation as evaluation_module
from guerdon.training.evaluation import (
    evaluate,
    evaluation_metrics,
    in_testing_state,
    rank_correlation,
)
from tests.collect.acting import Tracing, backend_vector, modes_vector, reported
from tests.envs.walking import Pattern
from tests.training.running import leaves, same

POLICIES = {
    "ppo": "guerdon/Identity-v0",
    "a2c": "guerdon/Identity-v0",
    "dqn": "guerdon/Identity-v0",
    "sac": "guerdon/Target-v0",
    "td3": "guerdon/Target-v0",
    "ddpg": "guerdon/Target-v0",
}
every_policy = pytest.mark.parametrize("name", POLICIES)


def made(name):
    env = make_vec(POLICIES[name], 2)
    config = {"type": name, "model": {"hidden": [8], "normalize_obs": True}}
    policy = create_policy(config, env.observation_space, env.action_space, seed=1)
    policy.train()
    return policy, env


def state_of(policy, collector):
    buffer, _ = collector.buffer.rollout()
    states = [policy.training_state(), collector.training_state(), buffer.to_dict()]
    return leaves([states, {name: module.training for name, module in policy.named_modules()}])


@every_policy
@pytest.mark.parametrize("deterministic", [True, False])
def test_an_evaluation_changes_nothing_that_training_uses(name, deterministic):
    def run(evaluations):
        policy, env = made(name)
        collector = Collector(policy, env, policy.make_buffer(400, 2, 0), seed=5)
        testing = make_vec(POLICIES[name], 3)
        seen = []
        for seed in range(3):
            collector.collect(n_step=20)
            policy.update(16, collector.buffer)
            before = state_of(policy, collector)
            if evaluations:
                evaluate(policy, testing, 4, seed=seed, deterministic=deterministic)
            after = state_of(policy, collector)
            assert [k for k in before if not same(before[k], after[k])] == []
            assert policy.training
            seen.append(after)
        return seen

    for one, other in zip(run(evaluations=True), run(evaluations=False), strict=True):
        assert [k for k in one if not same(one[k], other[k])] == []


@every_policy
def test_the_same_seed_gives_the_same_episodes_whatever_was_before(name):
    policy, env = made(name)
    one = evaluate(policy, env, 6, seed=3, deterministic=False)
    Collector(policy, env).collect(n_step=7)
    two = evaluate(policy, env, 6, seed=3, deterministic=False)
    other = evaluate(policy, env, 6, seed=4, deterministic=False)
    assert one.returns == two.returns
    assert one.lengths == two.lengths
    assert one.returns != other.returns


def test_it_plays_without_exploring_unless_it_shall():
    policy, env = made("dqn")
    policy.epsilon = 1.0
    acts = []
    step = env.step
    env.step = lambda act, env_ids=None: acts.extend(act.tolist()) or step(act, env_ids)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()  # all actions look the same, and the first is taken
    evaluate(policy, env, 6)
    assert set(acts) == {0}
    evaluate(policy, env, 6, deterministic=False)
    assert set(acts) == {0, 1, 2, 3}


def test_a_policy_that_was_testing_is_testing_again():
    policy, env = made("ppo")
    policy.eval()
    evaluate(policy, env, 2, deterministic=False)
    assert not policy.training


@pytest.mark.parametrize("deterministic", [True, False])
def test_modules_are_in_evaluation_mode_and_get_back_the_mode_of_each(deterministic):
    policy, env = made("ppo")
    policy.frozen = torch.nn.BatchNorm1d(2).eval()
    seen, forward = set(), policy.forward
    before = [module.training for module in policy.modules()]

    def watched(batch, state=None):
        seen.add((policy.explores, any(module.training for module in policy.modules())))
        return forward(batch, state)

    policy.forward = watched
    evaluate(policy, env, 2, deterministic=deterministic)
    assert seen == {(not deterministic, False)}
    assert [module.training for module in policy.modules()] == before
    seen.clear()
    policy.predict(env.observation_space.sample(), deterministic)
    assert seen == {(not deterministic, False)}
    assert [module.training for module in policy.modules()] == before


def test_an_error_leaves_the_policy_as_it_was():
    policy, _ = made("ppo")
    state = policy.generator.get_state()

    def fail():
        with in_testing_state(policy, seed=1):
            assert not policy.explores
            torch.rand(3, generator=policy.generator)
            raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops"):
        fail()
    assert policy.training
    assert torch.equal(policy.generator.get_state(), state)


@pytest.mark.parametrize("kind", [*AutoresetMode, "base"])
def test_it_plays_whole_episodes_exactly_as_many_and_without_favour(kind):
    patterns = [Pattern((20,)), Pattern((1,)), Pattern((2, 9))]
    make = backend_vector if kind == "base" else modes_vector
    env = make(kind, patterns)
    policy = Tracing(env)
    # The second environment alone could have played all of them before the others had one.
    expected = [(1, 1.0)] * 2 + [(2, 3.0), (9, 45.0)] + [(20, 210.0)] * 2
    assert reported(evaluate(policy, env, 6)) == expected


def test_metrics_of_an_evaluation():
    result = Collected(returns=[1.0, 3.0], lengths=[2, 6])
    assert evaluation_metrics(result) == {
        "eval/mean_reward": 2.0,
        "eval/std_reward": 1.0,
        "eval/mean_ep_length": 4.0,
    }
    result.successes = [True, False]
    assert evaluation_metrics(result)["eval/success_rate"] == 0.5
    assert all(type(value) is float for value in evaluation_metrics(result).values())
    assert np.isclose(evaluation_metrics(result)["eval/std_reward"], np.std([1.0, 3.0]))


# --- what a learned reward says


def step_number(data):
    return data.obs_next[..., 2].astype(np.float32)


def info_number(data):
    return data.rew


def rule(name, **options):
    return {"type": "function", "target": f"tests.training.test_evaluation:{name}", **options}


@pytest.mark.parametrize("kind", [*AutoresetMode, "base"])
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_a_learned_reward_is_asked_for_its_returns_of_the_same_episodes(kind, chunk, monkeypatch):
    monkeypatch.setattr(evaluation_module, "_CHUNK", chunk)
    patterns = [Pattern((20,)), Pattern((1,)), Pattern((2, 9))]
    env = (backend_vector if kind == "base" else modes_vector)(kind, patterns)
    # Twice the step's number, and one less; the environment pays the step's number.
    terms = {"steps": rule("step_number", weight=2.0), "minus": {"type": "constant", "value": -1.0}}
    found = evaluate(Tracing(env), env, 6, reward=make_reward({"terms": terms, "scale": 0.5}))
    assert sorted(found.lengths) == [1, 1, 2, 9, 20, 20]
    for learned, true, length in zip(found.learned, found.returns, found.lengths, strict=True):
        assert learned == true - length / 2
    metrics = evaluation_metrics(found)
    assert metrics["reward/eval_return"] == np.mean(found.learned)
    assert metrics["reward/rank_correlation"] == pytest.approx(1.0)


def test_a_lost_episode_is_not_counted_in_the_learned_return():
    patterns = [Pattern((3, 5, 1))]
    with backend_vector("subprocess", patterns, [{"fails_at": 6}], max_restarts=9) as env:
        found = evaluate(Tracing(env), env, 3, reward=make_reward(rule("step_number")))
    assert found.learned == found.returns == [6.0, 6.0, 6.0]


def test_the_environment_reward_has_no_learned_return():
    env = modes_vector(AutoresetMode.NEXT_STEP, [Pattern((2,))])
    found = evaluate(Tracing(env), env, 2, reward=make_reward({"type": "env", "scale": 0.1}))
    assert found.learned == []
    assert not any(name.startswith("reward/") for name in evaluation_metrics(found))


def test_a_learned_reward_may_read_info():
    env = modes_vector(AutoresetMode.NEXT_STEP, [Pattern((2,))])
    found = evaluate(Tracing(env), env, 2, reward=make_reward(rule("info_number", fields=["info"])))
    assert found.learned == found.returns


def test_equal_returns_have_no_order():
    result = Collected(returns=[5.0, 5.0], lengths=[5, 5], learned=[1.0, 2.0])
    metrics = evaluation_metrics(result)
    assert metrics["reward/eval_return"] == 1.5
    assert "reward/rank_correlation" not in metrics


def test_rank_correlation_is_spearmans():
    assert rank_correlation([1, 2, 3], [10, 20, 1000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, -50]) == pytest.approx(-1.0)
    # 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15), by the formula for ranks without ties.
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    # Ranks 1.5, 1.5, 3 against 1, 2, 3: covariance 1.5, spreads sqrt(1.5) and sqrt(2).
    assert rank_correlation([7, 7, 9], [1, 2, 3]) == pytest.approx(1.5 / np.sqrt(1.5 * 2))
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
