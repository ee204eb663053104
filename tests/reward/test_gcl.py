import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.data import Batch, Demonstrations, save_demonstrations
from guerdon.policy import create_policy
from guerdon.reward import GCL, Setting, create_reward_model, make_reward
from guerdon.reward.gcl import guided_cost_loss, mixed_log_prob

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 12, 12), np.uint8)
TWO = spaces.Discrete(2)
ARM = spaces.Box(-1, 1, (2,), np.float32)


def draw(space, shape, generator, shift=0.0):
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.n, size=shape)
    if space.dtype == np.uint8:
        return generator.integers(256, size=(*shape, *space.shape)).astype(np.uint8)
    return (generator.normal(size=(*shape, *space.shape)) + shift).astype(space.dtype)


def transitions(shape, observation_space=VECTOR, action_space=TWO, shift=0.0, seed=0):
    generator = np.random.default_rng(seed)
    return Batch(
        obs=draw(observation_space, shape, generator, shift),
        act=draw(action_space, shape, generator),
        rew=np.zeros(shape, np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        obs_next=draw(observation_space, shape, generator, shift),
        mask=np.ones(shape, bool),
    )


def experts(observation_space=VECTOR, action_space=TWO, n_rows=60):
    episode = transitions((n_rows,), observation_space, action_space, shift=1.5, seed=9)
    del episode.mask
    return Demonstrations([episode])


def even(_obs, act):
    """A policy that finds all actions equally likely."""
    return torch.full((len(act),), -math.log(2.0))


def make(observation_space=VECTOR, action_space=TWO, log_prob=even, **options):
    model = create_reward_model({"type": "gcl", "hidden_size": [16], "batch_size": 32, **options})
    model.setup(Setting(observation_space, action_space, n_envs=4, seed=1, log_prob=log_prob))
    model.load_expert_data(experts(observation_space, action_space))
    return model


def taught(steps=200, **options):
    model = make(**options)
    model.collect_data(transitions((30, 4)))
    return model, model.fit(steps)


# --- the loss


def test_the_loss_is_the_mean_cost_of_experts_and_the_logarithm_of_the_partition_function():
    expert = torch.tensor([1.0, 3.0])
    samples = torch.tensor([0.0, math.log(2.0)])  # exp(-cost): 1 and 1/2
    log_prob = torch.tensor([0.5, 0.1]).log()  # so that they count for 2 and 5
    loss, log_partition = guided_cost_loss(expert, samples, log_prob)
    assert log_partition.item() == pytest.approx(math.log(3.5))
    assert loss.item() == pytest.approx(2.0 + math.log(3.5))


def test_its_gradient_raises_the_costs_of_samples_by_their_weights():
    samples = torch.tensor([0.0, math.log(2.0)], requires_grad=True)
    guided_cost_loss(torch.zeros(2), samples, torch.tensor([0.5, 0.1]).log())[0].backward()
    np.testing.assert_allclose(samples.grad, [-2 / 7, -5 / 7], rtol=1e-6)


def test_the_loss_does_not_overflow():
    loss, _ = guided_cost_loss(
        torch.tensor([-500.0]), torch.tensor([-500.0, 0.0]), torch.tensor([-90.0, -900.0])
    )
    assert loss.item() == pytest.approx(-500.0 + 900.0 - math.log(2.0))


def test_samples_are_half_the_policys_and_half_as_likely_as_the_cost_says():
    cost = torch.tensor([0.0, math.log(4.0)])  # exp(-cost) / 2: 1/2 and 1/8
    drawn = mixed_log_prob(cost, torch.tensor(2.0).log(), torch.tensor([0.1, 0.5]).log())
    np.testing.assert_allclose(drawn.exp(), [0.3, 0.3125], rtol=1e-6)


def test_no_sample_counts_for_more_than_twice_the_mean():
    cost, log_partition = torch.tensor([-3.0, 0.0]), torch.tensor(1.0)
    drawn = mixed_log_prob(cost, log_partition, torch.tensor([-90.0, -1e4]))
    np.testing.assert_allclose((-cost - drawn).exp(), [2 * math.e] * 2, rtol=1e-5)


def test_a_shift_of_all_costs_changes_nothing():
    costs, log_prob = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([-1.0, -2.0, -0.5])
    one, other = (guided_cost_loss(c[:2], c, log_prob)[0] for c in (costs, costs + 5.0))
    assert one.item() == pytest.approx(other.item())


# --- what it learns


def test_it_learns_that_demonstrations_cost_less():
    model, metrics = taught()
    assert metrics["expert_cost"] < metrics["policy_cost"]
    rewards = [
        model.estimate(data).rew for data in (experts().transitions(), transitions((200,), seed=3))
    ]
    assert rewards[0].mean() > rewards[1].mean() + 1.0


def test_of_two_actions_the_demonstrated_one_is_worth_more():
    demonstrations = experts().episodes[0]
    demonstrations.obs = transitions((60,), seed=5).obs  # nothing is to be seen of states
    demonstrations.act = np.ones(60, int)
    model = make()
    model.load_expert_data(Demonstrations([demonstrations]))
    model.collect_data(transitions((30, 4)))
    model.fit(200)
    data = transitions((100,), seed=4)
    worth = [model.estimate(data.replace(act=np.full(100, act))).rew.mean() for act in (0, 1)]
    assert worth[1] > worth[0] + 1.0


def test_rewards_of_what_the_policy_did_are_of_mean_0_and_spread_1_and_all_are_bounded():
    model, _ = taught(statistics_rate=0.1, limit=3.0)
    rew = model.estimate(transitions((30, 4))).rew
    assert abs(rew.mean()) < 0.3
    assert 0.7 < rew.std() < 1.3
    assert model.estimate(experts().transitions()).rew.max() == 3.0
    far = transitions((50,)).replace(obs=np.full((50, 3), -1e6, np.float32))
    assert model.estimate(far).rew.min() >= -3.0


def test_the_statistics_follow_costs_by_hand():
    network = make().network
    network.follow(torch.tensor([1.0, 3.0]), 0.25)
    assert (network.mean.item(), network.variance.item()) == (2.0, 1.0)
    network.follow(torch.tensor([6.0, 6.0]), 0.25)  # half of the way: it is but the second
    assert network.mean.item() == 4.0
    assert network.variance.item() == pytest.approx(0.5 * 1.0 + 0.5 * 4.0)
    assert network.reward(torch.tensor(4.0)).item() == 0.0
    assert network.reward(torch.tensor(1.0)).item() == pytest.approx(3.0 / math.sqrt(2.5))


# --- importance weights


def test_how_likely_actions_were_is_asked_when_they_are_collected():
    now = {"value": -1.0}
    model = make(log_prob=lambda _obs, act: torch.full((len(act),), now["value"]))
    model.collect_data(transitions((3, 4)))
    now["value"] = -5.0
    model.collect_data(transitions((2, 4)))
    kept = model.memory.rows().log_prob
    assert kept.tolist() == [-1.0] * 12 + [-5.0] * 8


def test_rows_that_are_no_transitions_are_not_asked_about():
    model, data = make(), transitions((3, 4))
    data.mask[1:] = False
    model.collect_data(data)
    assert len(model.memory) == 4


def test_many_rows_are_asked_about_in_pieces():
    asked = []

    def log_prob(obs, act):
        asked.append(len(act))
        assert len(obs) == len(act)
        return obs[:, 0]

    model, data = make(log_prob=log_prob), transitions((700, 4))
    model.collect_data(data)
    assert asked == [1024, 1024, 752]
    np.testing.assert_array_equal(model.memory.rows().log_prob, data.obs.reshape(-1, 3)[:, 0])


def test_an_action_is_not_worth_less_because_the_policy_prefers_it():
    """Experts act evenly, the policy mostly takes action 0, and states say nothing."""
    demonstrations = experts(n_rows=400).episodes[0]
    demonstrations.obs = transitions((400,), seed=5).obs
    data = transitions((100, 4))
    data.act = (np.random.default_rng(2).random((100, 4)) > 0.9).astype(int)

    def preference(log_prob):
        model = make(log_prob=log_prob)
        model.load_expert_data(Demonstrations([demonstrations]))
        model.collect_data(data)
        model.fit(300)
        rows = model.tensors(transitions((200,), seed=4))
        cost = [model.network(rows | {"act": torch.full((200,), act)}).mean() for act in (0, 1)]
        return (cost[0] - cost[1]).item()

    def true(_obs, act):
        return torch.where(act == 0, 0.9, 0.1).log()

    assert abs(preference(true)) < 0.3
    assert preference(even) > 0.6


@pytest.mark.parametrize("kind", ["ppo", "sac"])
@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_it_takes_the_log_probabilities_of_policies(kind, action_space):
    policy = create_policy({"type": kind, "model": {"hidden": [8]}}, VECTOR, action_space)
    model = make(VECTOR, action_space, policy.log_prob)
    data = transitions((5, 4), VECTOR, action_space)
    model.collect_data(data)
    rows = data[data.mask]
    with torch.no_grad():
        expected = policy.log_prob(torch.tensor(rows.obs), torch.tensor(rows.act))
    np.testing.assert_allclose(model.memory.rows().log_prob, expected, rtol=1e-5)
    assert all(math.isfinite(value) for value in model.train().values())


def test_a_policy_without_a_density_is_refused():
    for name in ("gcl", "guided_cost"):
        with pytest.raises(ValueError, match=f"'{name}' needs to know how likely actions are"):
            make_reward({"type": name}).setup(Setting(VECTOR, TWO))
    with pytest.raises(ValueError, match="'log_prob'"):
        make(log_prob=None).collect_data(transitions((2, 2)))


# --- the contract


def test_it_goes_by_two_names():
    assert type(create_reward_model({"type": "guided_cost"})) is GCL


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("observation_space", [VECTOR, IMAGE], ids=["vectors", "images"])
@pytest.mark.parametrize("inputs", [["obs"], ["obs", "act"], ["obs", "act", "obs_next"]])
def test_it_takes_vectors_and_images_and_actions_of_both_kinds(
    observation_space, action_space, inputs
):
    model = make(observation_space, action_space, inputs=inputs, update_per_collect=2)
    data = transitions((6, 4), observation_space, action_space)
    model.collect_data(data)
    assert set(model.train()) == {"loss", "expert_cost", "policy_cost"}
    assert model.estimate(data).rew.shape == (6, 4)


def test_what_a_transition_is_worth_depends_on_nothing_else():
    model, _ = taught(20)
    data = transitions((8, 4))
    before = copy.deepcopy(data)
    whole = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(data).rew, whole)
    order = np.array([5, 0, 7, 3, 1, 2, 6, 4])
    np.testing.assert_allclose(model.estimate(data[order]).rew, whole[order], rtol=1e-5)
    np.testing.assert_allclose(model.estimate(data[3:4, 1:2]).rew, whole[3:4, 1:2], rtol=1e-5)
    assert data == before


def test_a_list_of_dictionaries_comes_back_as_one():
    model, data = make(), transitions((5,))
    items = [
        {"obs": torch.tensor(data.obs[i]), "action": torch.tensor(data.act[i]), "reward": 7.0}
        for i in range(5)
    ]
    worth = [item["reward"] for item in model.estimate(items)]
    np.testing.assert_allclose(worth, model.estimate(data).rew, rtol=1e-6)
    assert [item["reward"] for item in items] == [7.0] * 5


def test_inputs_are_normalised_by_the_experts_alone():
    model = make()
    before = model.network.input.normalizers["obs"].mean.clone()
    np.testing.assert_allclose(before, experts().transitions().obs.mean(0), rtol=1e-4)
    model.collect_data(transitions((30, 4)))
    model.train()
    assert torch.equal(model.network.input.normalizers["obs"].mean, before)


def test_training_in_two_halves_with_a_restart_between_is_training_at_once():
    whole, half, rest = make(), make(), make()
    for model in (whole, half):
        model.collect_data(transitions((6, 4)))
    whole.fit(6)
    half.fit(3)
    rest.load_state_dict(copy.deepcopy(half.state_dict()))
    rest.fit(3)
    data = transitions((5,), seed=8)
    np.testing.assert_array_equal(rest.estimate(data).rew, whole.estimate(data).rew)
    rest.collect_data(transitions((1, 4), seed=2))
    assert len(rest.memory) == 28


def test_the_demonstrations_of_the_config_are_loaded_where_nobody_else_did(tmp_path):
    save_demonstrations(experts(), tmp_path)
    model = create_reward_model({"type": "gcl", "expert_data_path": str(tmp_path)})
    model.setup(Setting(VECTOR, TWO, log_prob=even))
    model.collect_data(transitions((6, 4)))
    assert model.train() is not None
    assert len(model.expert["act"]) == 60


def test_what_an_on_policy_policy_did_is_forgotten_after_each_iteration():
    model = make()
    model.collect_data(transitions((6, 4)))
    model.train()
    model.clear_data(1)
    assert len(model.memory) == 0
