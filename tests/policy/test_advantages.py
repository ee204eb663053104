import numpy as np
import pytest
import torch

from guerdon.collect import Collector
from guerdon.data.batch import Batch
from guerdon.envs import make_vec
from guerdon.policy import advantages, create_policy
from guerdon.policy.advantages import branch, index_rows, minibatches
from tests.policy.cases import CASES, N_ENVS, collected, make_policy, spaces_of, warmed_up
from tests.policy.hand import GAMMA, answer, five_steps, processed

BOTH = {name: spaces_of(CASES[name].env) for name in ("ppo", "ppo_continuous")}


@pytest.mark.parametrize("where", BOTH.values(), ids=BOTH)
@pytest.mark.parametrize("type_", ["ppo", "a2c"])
@pytest.mark.parametrize(
    ("gae_lambda", "expected"),
    [
        # With a value of 10 everywhere, rewards of 1 to 5 and a discount of 0.5, the errors are
        # 1 + 5 - 10, 2 - 10 (terminated), 3 + 5 - 10, 4 + 5 - 10 (truncated), 5 + 5 - 10 (newest).
        (0.0, [-4.0, -8.0, -2.0, -1.0, 0.0]),
        # Half of the discounted error of the next step, where the episode has one.
        (0.5, [-6.0, -8.0, -2.25, -1.0, 0.0]),
        (1.0, [-8.0, -8.0, -2.5, -1.0, 0.0]),
    ],
)
def test_terminated_stops_the_bootstrap_and_truncated_does_not(where, type_, gae_lambda, expected):
    policy = create_policy({"type": type_, "gamma": GAMMA, "gae_lambda": gae_lambda}, *where)
    answer(policy.model, "value_head.bias", 10.0)
    rows = processed(policy, five_steps(policy))
    assert rows.advantage.tolist() == expected
    assert rows.returns.tolist() == [each + 10.0 for each in expected]
    assert rows.value.tolist() == [10.0] * 5


def test_next_observations_are_looked_at_only_where_no_row_follows():
    policy = create_policy({"type": "ppo"}, *BOTH["ppo"])
    asked = []
    critic = policy.model.critic
    policy.model.critic = lambda obs: asked.append(obs) or critic(obs)
    processed(policy, five_steps(policy))
    assert [obs[:, 0].tolist() for obs in asked] == [[0.0, 1.0, 2.0, 3.0, 4.0], [3.5, 5.0]]


@pytest.mark.parametrize("name", ["ppo", "ppo_continuous"])
def test_log_probabilities_are_those_of_the_policy_that_acted(name):
    policy = make_policy(CASES[name])
    buffer = collected(policy, CASES[name])
    rows = processed(policy, buffer)
    expected = policy.actions.log_prob_entropy(policy.model(rows.obs), rows.act)[0]
    torch.testing.assert_close(rows.log_prob, expected.detach())
    assert not rows.log_prob.requires_grad
    policy.update(16, buffer)
    assert torch.equal(processed(policy, buffer).log_prob, rows.log_prob)
    changed = policy.actions.log_prob_entropy(policy.model(rows.obs), rows.act)[0]
    assert (changed - expected).abs().max() > 1e-4


def test_rows_are_those_of_the_buffer_in_time_order():
    policy = make_policy(CASES["ppo"])
    buffer = collected(policy, CASES["ppo"])
    batch, indices = buffer.rollout()
    rows = processed(policy, buffer)
    stored = buffer[indices[batch.mask]]
    np.testing.assert_array_equal(rows.obs, stored.obs)
    np.testing.assert_array_equal(rows.act, stored.act)


@pytest.mark.parametrize("name", ["ppo", "ppo_continuous"])
def test_random_actions_have_the_log_probabilities_of_the_current_policy(name):
    policy = make_policy(CASES[name])
    buffer = policy.make_buffer(64, N_ENVS, 0)
    env = make_vec(CASES[name].env[0], N_ENVS)
    act = Batch(act=np.stack([env.action_space.sample() for _ in range(N_ENVS)]))
    if name == "ppo_continuous":
        act.policy = Batch(raw=act.act)
    Collector(lambda *_: act, env, buffer).collect(n_step=64)
    rows = processed(policy, buffer)
    expected = policy.actions.log_prob_entropy(policy.model(rows.obs), rows.act)[0]
    torch.testing.assert_close(rows.log_prob, expected.detach())


@pytest.mark.parametrize("name", ["ppo", "ppo_continuous"])
def test_many_rows_are_computed_in_pieces(name, monkeypatch):
    policy, buffer = warmed_up(CASES[name])
    whole = processed(policy, buffer)
    monkeypatch.setattr(advantages, "CHUNK", 7)
    pieces = processed(policy, buffer)
    for key in ("log_prob", "value", "advantage", "returns"):
        torch.testing.assert_close(whole[key], pieces[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.float16, np.float64])
def test_rewards_of_any_type_become_single_precision(dtype):
    policy = create_policy({"type": "ppo"}, *BOTH["ppo"])
    buffer = five_steps(policy)
    expected = processed(policy, buffer).advantage
    batch, indices = buffer.rollout(policy.fields)
    batch = batch.replace(rew=batch.rew.astype(dtype)).to_device(policy.device)
    advantage = policy.process_fn(batch, buffer, indices).advantage
    assert advantage.dtype == torch.float32
    assert torch.equal(advantage, expected)


def test_a_shared_encoder_gives_the_same_values_both_ways():
    config = {"type": "ppo", "gamma": GAMMA, "model": {"hidden": [4], "share_encoder": True}}
    policy = create_policy(config, *BOTH["ppo"])
    rows = processed(policy, five_steps(policy))
    obs = torch.tensor([[3.5] * 4, [5.0] * 4])
    with torch.no_grad():
        ends = policy.model(obs)["value"]
    torch.testing.assert_close(rows.advantage[3], 4.0 + GAMMA * ends[0] - rows.value[3])
    torch.testing.assert_close(rows.advantage[4], 5.0 + GAMMA * ends[1] - rows.value[4])


# --- minibatches


def batch_of(n_rows):
    numbers = torch.arange(n_rows)
    return Batch(advantage=numbers.float(), obs={"a": numbers, "b": numbers})


@pytest.mark.parametrize(
    ("n_rows", "batch_size", "sizes"),
    [
        (12, 4, [4, 4, 4]),
        (13, 4, [4, 5, 4]),  # not 4, 4, 4 and 1
        (15, 4, [4, 3, 4, 4]),
        (3, 10, [3]),
        (1, 1, [1]),
    ],
)
def test_pieces_are_of_about_one_size(n_rows, batch_size, sizes):
    pieces = list(minibatches(batch_of(n_rows), batch_size, torch.Generator().manual_seed(0)))
    assert sorted(len(piece["advantage"]) for piece in pieces) == sorted(sizes)
    rows = torch.cat([piece["advantage"] for piece in pieces])
    assert sorted(rows.tolist()) == list(range(n_rows))


def test_pieces_are_in_random_order_and_keep_rows_together():
    generator = torch.Generator().manual_seed(0)
    passes = [list(minibatches(batch_of(20), 5, generator)) for _ in range(2)]
    orders = [torch.cat([piece["advantage"] for piece in pieces]).tolist() for pieces in passes]
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])
    for piece in passes[0]:
        assert piece["obs"]["a"].tolist() == piece["advantage"].tolist()
        assert piece["obs"]["b"].tolist() == piece["advantage"].tolist()


# --- small things


def test_rows_of_nested_observations_are_indexed_together():
    rows = index_rows(Batch(a=torch.arange(3), b={"c": torch.arange(3) * 2}), slice(1, 3))
    assert rows["a"].tolist() == [1, 2]
    assert rows["b"]["c"].tolist() == [2, 4]


def test_a_model_without_halves_is_called_as_a_whole():
    class Whole:
        pass

    whole, policy = Whole(), create_policy({"type": "ppo"}, *BOTH["ppo"])
    assert branch(whole, "critic") is whole
    assert branch(policy.model, "critic") == policy.model.critic
