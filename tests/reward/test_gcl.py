import copy
import math

import numpy as np
import pytest
import torch

from guerdon.data import save_demonstrations
from guerdon.policy import create_policy
from guerdon.reward import Setting, create_reward_model, make_reward
from guerdon.reward.gcl import GCL, guided_cost_loss, mixed_log_prob
from tests.reward.experts import ARM, IMAGE, TWO, VECTOR, as_items, demonstrations, transitions
from tests.rounding import assert_close


def experts(observation_space=VECTOR, action_space=TWO, n_rows=60):
    return demonstrations(
        transitions((n_rows,), observation_space, action_space, seed=9, shift=1.5),
        observation_space=observation_space,
        action_space=action_space,
    )


def even(_obs, act):
    """Log-probabilities of a policy that is uniform."""
    return torch.full((len(act),), -math.log(2.0))


def make(observation_space=VECTOR, action_space=TWO, log_prob=even, **options):
    setting = Setting(observation_space, action_space, n_envs=4, seed=1, log_prob=log_prob)
    model = GCL({"type": "gcl", "hidden_size": [16], "batch_size": 32, **options}, setting)
    model.load_expert_data(experts(observation_space, action_space))
    return model


def trained(steps=200, **options):
    model = make(**options)
    model.collect_data(transitions((30, 4)))
    return model, model.fit(steps)


# --- the loss


def test_the_loss_is_the_mean_cost_of_demonstrations_plus_log_z():
    expert = torch.tensor([1.0, 3.0])
    samples = torch.tensor([0.0, math.log(2.0)])  # exp(-cost): 1 and 1/2
    log_prob = torch.tensor([0.5, 0.1]).log()  # so that they count for 2 and 5
    loss, log_partition = guided_cost_loss(expert, samples, log_prob)
    assert log_partition.item() == pytest.approx(math.log(3.5))
    assert loss.item() == pytest.approx(2.0 + math.log(3.5))


def test_the_gradient_of_samples_is_their_importance_weight():
    samples = torch.tensor([0.0, math.log(2.0)], requires_grad=True)
    guided_cost_loss(torch.zeros(2), samples, torch.tensor([0.5, 0.1]).log())[0].backward()
    assert_close(samples.grad, [-2 / 7, -5 / 7])


def test_the_loss_does_not_overflow():
    loss, _ = guided_cost_loss(
        torch.tensor([-500.0]), torch.tensor([-500.0, 0.0]), torch.tensor([-90.0, -900.0])
    )
    assert loss.item() == pytest.approx(-500.0 + 900.0 - math.log(2.0))


def test_samples_are_drawn_from_the_policy_and_from_the_cost_by_halves():
    cost = torch.tensor([0.0, math.log(4.0)])  # exp(-cost) / 2: 1/2 and 1/8
    drawn = mixed_log_prob(cost, torch.tensor(2.0).log(), torch.tensor([0.1, 0.5]).log())
    assert_close(drawn.exp(), [0.3, 0.3125])


def test_importance_weights_are_at_most_twice_their_mean():
    cost, log_partition = torch.tensor([-3.0, 0.0]), torch.tensor(1.0)
    drawn = mixed_log_prob(cost, log_partition, torch.tensor([-90.0, -1e4]))
    assert_close((-cost - drawn).exp(), [2 * math.e] * 2)


def test_the_loss_is_invariant_to_a_constant_added_to_costs():
    costs, log_prob = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([-1.0, -2.0, -0.5])
    one, other = (guided_cost_loss(c[:2], c, log_prob)[0] for c in (costs, costs + 5.0))
    assert one.item() == pytest.approx(other.item())


# --- training


def test_demonstrations_cost_less():
    model, metrics = trained()
    assert metrics["expert_cost"] < metrics["policy_cost"]
    rewards = [
        model.estimate(data).rew for data in (experts().transitions(), transitions((200,), seed=3))
    ]
    assert rewards[0].mean() > rewards[1].mean() + 1.0


def test_the_demonstrated_action_has_the_larger_reward():
    shown = transitions((60,), seed=5)  # states as the policy's
    model = make()
    model.load_expert_data(demonstrations(shown.replace(act=np.ones(60, int))))
    model.collect_data(transitions((30, 4)))
    model.fit(200)
    data = transitions((100,), seed=4)
    rew = [model.estimate(data.replace(act=np.full(100, act))).rew.mean() for act in (0, 1)]
    assert rew[1] > rew[0] + 1.0


def test_rewards_of_the_policy_are_standardised_and_all_are_bounded():
    model, _ = trained(statistics_rate=0.1, limit=3.0)
    rew = model.estimate(transitions((30, 4))).rew
    assert abs(rew.mean()) < 0.3
    assert 0.7 < rew.std() < 1.3
    assert model.estimate(experts().transitions()).rew.max() == 3.0
    far = transitions((50,)).replace(obs=np.full((50, 3), -1e6, np.float32))
    assert model.estimate(far).rew.min() >= -3.0


def test_the_statistics_by_hand():
    network = make().network
    network.update_statistics(torch.tensor([1.0, 3.0]), 0.25)
    assert (network.mean.item(), network.variance.item()) == (2.0, 1.0)
    network.update_statistics(torch.tensor([6.0, 6.0]), 0.25)  # the mean of two
    assert network.mean.item() == 4.0
    assert network.variance.item() == pytest.approx(0.5 * 1.0 + 0.5 * 4.0)
    assert network.reward(torch.tensor(4.0)).item() == 0.0
    assert network.reward(torch.tensor(1.0)).item() == pytest.approx(3.0 / math.sqrt(2.5))


# --- importance weights


def test_log_probabilities_are_those_of_the_policy_that_acted():
    now = {"value": -1.0}
    model = make(log_prob=lambda _obs, act: torch.full((len(act),), now["value"]))
    model.collect_data(transitions((3, 4)))
    now["value"] = -5.0
    model.collect_data(transitions((2, 4)))
    kept = model.memory.rows().log_prob
    assert kept.tolist() == [-1.0] * 12 + [-5.0] * 8


def test_msizes_rows_are_not_kept():
    model, data = make(), transitions((3, 4))
    data.mask[1:] = False
    model.collect_data(data)
    assert len(model.memory) == 4


def test_log_probabilities_of_many_rows_are_computed_in_chunks():
    sizes = []

    def log_prob(obs, act):
        sizes.append(len(act))
        assert len(obs) == len(act)
        return obs[:, 0]

    model, data = make(log_prob=log_prob), transitions((700, 4))
    model.collect_data(data)
    assert sizes == [1024, 1024, 752]
    np.testing.assert_array_equal(model.memory.rows().log_prob, data.obs.reshape(-1, 3)[:, 0])


def test_importance_weights_correct_for_the_policys_preference():
    """Demonstrated actions are uniform, the policy mostly takes action 0, states are the same."""
    act = experts(n_rows=400).episodes[0].act
    shown = demonstrations(transitions((400,), seed=5).replace(act=act))
    data = transitions((100, 4))
    data.act = (np.random.default_rng(2).random((100, 4)) > 0.9).astype(int)

    def preference(log_prob):
        model = make(log_prob=log_prob)
        model.load_expert_data(shown)
        model.collect_data(data)
        model.fit(300)
        rows = model.tensors(transitions((200,), seed=4))
        cost = [model.network(rows.replace(act=torch.full((200,), act))).mean() for act in (0, 1)]
        return (cost[0] - cost[1]).item()

    def true(_obs, act):
        return torch.where(act == 0, 0.9, 0.1).log()

    assert abs(preference(true)) < 0.3
    assert preference(even) > 0.6


@pytest.mark.parametrize("kind", ["ppo", "sac"])
@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_log_probabilities_of_policies(kind, action_space):
    policy = create_policy({"type": kind, "model": {"hidden": [8]}}, VECTOR, action_space)
    model = make(VECTOR, action_space, policy.log_prob)
    data = transitions((5, 4), VECTOR, action_space)
    model.collect_data(data)
    rows = data[data.mask]
    with torch.no_grad():
        expected = policy.log_prob(torch.tensor(rows.obs), torch.tensor(rows.act))
    assert_close(model.memory.rows().log_prob, expected)
    assert all(math.isfinite(value) for value in model.train().values())


def test_a_policy_without_a_density_is_refused():
    for name in ("gcl", "guided_cost"):
        with pytest.raises(ValueError, match=f"'{name}' needs the log-probability of actions"):
            make_reward({"type": name}, Setting(VECTOR, TWO))
    with pytest.raises(ValueError, match="'log_prob'"):
        make(log_prob=None).collect_data(transitions((2, 2)))


# --- the interface


def test_it_has_two_names():
    assert type(create_reward_model({"type": "guided_cost"}, Setting(VECTOR, TWO))) is GCL


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("observation_space", [VECTOR, IMAGE], ids=["vectors", "images"])
@pytest.mark.parametrize("inputs", [["obs"], ["obs", "act"], ["obs", "act", "obs_next"]])
def test_spaces_and_inputs(observation_space, action_space, inputs):
    model = make(observation_space, action_space, inputs=inputs, update_per_collect=2)
    data = transitions((6, 4), observation_space, action_space)
    model.collect_data(data)
    assert set(model.train()) == {"loss", "expert_cost", "policy_cost"}
    assert model.estimate(data).rew.shape == (6, 4)


@pytest.mark.usefixtures("rounding")
def test_the_score_of_a_transition_depends_on_nothing_else():
    model, _ = trained(20)
    data = transitions((8, 4))
    before = copy.deepcopy(data)
    whole = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(data).rew, whole)
    order = np.array([5, 0, 7, 3, 1, 2, 6, 4])
    assert_close(model.estimate(data[order]).rew, whole[order])
    assert_close(model.estimate(data[3:4, 1:2]).rew, whole[3:4, 1:2])
    assert data == before


def test_estimate_returns_a_list_for_a_list():
    model, data = make(), transitions((5,))
    items = as_items(data)
    rew = [item["reward"] for item in model.estimate(items)]
    assert_close(rew, model.estimate(data).rew)
    assert [item["reward"] for item in items] == [7.0] * 5


def test_inputs_are_normalised_by_the_demonstrations_alone():
    model = make()
    before = model.network.input.normalizers["obs"].mean.clone()
    assert_close(before, experts().transitions().obs.mean(0), rtol=1e-4)
    model.collect_data(transitions((30, 4)))
    model.train()
    assert torch.equal(model.network.input.normalizers["obs"].mean, before)


def test_a_resumed_model_trains_exactly_as_the_first():
    whole, half, rest = make(), make(), make()
    for model in (whole, half):
        model.collect_data(transitions((6, 4)))
    whole.fit(6)
    half.fit(3)
    rest.load_training_state(copy.deepcopy(half.training_state()))
    rest.fit(3)
    data = transitions((5,), seed=8)
    np.testing.assert_array_equal(rest.estimate(data).rew, whole.estimate(data).rew)
    rest.collect_data(transitions((1, 4), seed=2))
    assert len(rest.memory) == 28


def test_training_loads_the_demonstrations_of_the_config(tmp_path):
    save_demonstrations(experts(), tmp_path)
    config = {"type": "gcl", "expert_data_path": str(tmp_path)}
    model = create_reward_model(config, Setting(VECTOR, TWO, log_prob=even))
    model.collect_data(transitions((6, 4)))
    assert model.train() is not None
    assert len(model.expert["act"]) == 60


def test_on_policy_data_is_dropped_after_each_iteration():
    model = make()
    model.collect_data(transitions((6, 4)))
    model.train()
    model.clear_data(1)
    assert len(model.memory) == 0
