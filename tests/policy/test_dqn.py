import numpy as np
import pytest
import torch

from guerdon.data import Batch, PrioritizedReplayBuffer, ReplayBuffer
from guerdon.nn.heads import DuelingHead
from guerdon.policy import create_policy
from tests.policy.cases import CASES, collected, make_policy, spaces_of, warmed_up, weights
from tests.policy.hand import GAMMA, TARGETS, answer, five_steps, processed
from tests.rounding import assert_close

SPACES = spaces_of(CASES["dqn"].env)


def make(**options):
    config = {"type": "dqn", "gamma": GAMMA, "model": {"hidden": [4]}, **options}
    return create_policy(config, *SPACES)


def networks(policy):
    return policy.model, policy.target


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n_step", TARGETS)
def test_terminated_stops_the_bootstrap_and_truncated_does_not(n_step, double, prioritized):
    policy = make(n_step=n_step, double=double, prioritized=prioritized)
    for network in networks(policy):
        answer(network, "head.linear.bias", 10.0)
    assert processed(policy, five_steps(policy)).target.tolist() == TARGETS[n_step]


@pytest.mark.parametrize(("double", "value"), [(True, 2.0), (False, 8.0)])
def test_double_lets_the_network_choose_and_the_target_value(double, value):
    policy = make(double=double)
    answer(policy.model, "head.linear.bias", 1.0, 0.0)
    answer(policy.target, "head.linear.bias", 2.0, 8.0)
    target = processed(policy, five_steps(policy)).target
    assert target[0] == 1.0 + GAMMA * value


def test_dueling_gives_the_network_a_dueling_head():
    assert isinstance(make(model={"dueling": True}).model.head, DuelingHead)
    assert not isinstance(make().model.head, DuelingHead)


def test_the_target_is_copied_every_so_many_updates():
    policy = make(target_update_every=3)
    buffer = collected(policy, CASES["dqn"])
    start = policy.target.state_dict()["head.linear.weight"].clone()
    for update in range(1, 7):
        policy.update(16, buffer)
        weight, target = (net.state_dict()["head.linear.weight"] for net in networks(policy))
        assert torch.equal(weight, target) is (update % 3 == 0)
        assert torch.equal(target, start) is (update < 3)


def test_targets_and_errors_carry_no_gradient():
    policy, buffer = warmed_up(CASES["dqn_prioritized"])
    rows = processed(policy, buffer)
    assert not rows.target.requires_grad
    policy.learn(rows)
    assert not rows.priority.requires_grad


def test_epsilon_falls_with_the_steps_of_the_environment():
    policy = make(epsilon={"start": 1.0, "end": 0.1, "decay": 100})
    seen = []
    for steps in (0, 50, 100, 1000):
        policy.advance(steps, 0.0)
        seen.append(policy.epsilon)
    assert seen == pytest.approx([1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 0.0), (0.5, 0.25), (1.0, 0.5)])
def test_epsilon_is_the_chance_of_a_random_action(epsilon, share):
    policy = make(epsilon={"start": epsilon, "end": epsilon})
    answer(policy.model, "head.linear.bias", 1.0, 0.0)
    act = policy(Batch(obs=np.zeros((4000, 4), np.float32))).act
    assert act.mean() == pytest.approx(share, abs=0.03)


def test_the_buffer_is_prioritized_if_asked():
    assert type(make().make_buffer(10, 1, 0)) is ReplayBuffer
    buffer = make(prioritized=True, alpha=0.3, beta=0.2).make_buffer(10, 1, 0)
    assert isinstance(buffer, PrioritizedReplayBuffer)
    assert (buffer.alpha, buffer.beta) == (0.3, 0.2)


def test_beta_grows_to_one_with_the_run():
    policy = make(prioritized=True, beta=0.4)
    buffer = collected(policy, CASES["dqn"])
    for progress, beta in ((0.0, 0.4), (0.5, 0.7), (1.0, 1.0), (2.0, 1.0)):
        policy.advance(0, progress)
        policy.update(8, buffer)
        assert buffer.beta == pytest.approx(beta)


def test_rows_that_were_not_read_keep_their_priority():
    policy = make(prioritized=True)
    buffer = collected(policy, CASES["dqn"])
    before = buffer.priorities
    seen = []
    read = policy.read
    policy.read = lambda *args: seen.append(read(*args)) or seen[-1]
    policy.update(8, buffer)
    others = np.setdiff1d(buffer.stored_rows(), seen[0][1])
    np.testing.assert_array_equal(buffer.priorities[others], before[others])
    assert (buffer.priorities[seen[0][1]] != before[seen[0][1]]).all()


def test_a_schedule_is_restored_where_it_was():
    policy = make(prioritized=True)
    policy.advance(4000, 0.5)
    other = make(prioritized=True)
    other.load_training_state(policy.training_state())
    assert other.epsilon == policy.epsilon == pytest.approx(0.62)
    buffer = collected(policy, CASES["dqn"])
    other.update(8, buffer)
    assert buffer.beta == pytest.approx(0.7)


def test_gradients_are_clipped_to_their_norm():
    policy = make(max_grad_norm=1e-3)
    buffer = collected(policy, CASES["dqn"])
    policy.update(16, buffer)
    norm = torch.sqrt(sum(p.grad.square().sum() for p in policy.model.parameters()))
    assert norm == pytest.approx(1e-3, rel=1e-2)


def test_an_update_tells_its_loss_and_exploration():
    policy, buffer = warmed_up(CASES["dqn"])
    metrics = policy.update(16, buffer)
    assert set(metrics) == {"train/loss", "train/epsilon", "train/learning_rate"}
    assert metrics["train/epsilon"] == 1.0


@pytest.mark.parametrize("option", [{"n_step": 0}, {"alpha": 2.0}, {"epsilon": {"type": "cubic"}}])
def test_impossible_options_are_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        make(**option)


def test_networks_begin_as_copies():
    policy = make_policy(CASES["dqn"])
    state = weights(policy)
    for name in policy.model.state_dict():
        np.testing.assert_array_equal(state[f"model.{name}"], state[f"target.{name}"], err_msg=name)


def test_a_soft_target_goes_the_share_tau_of_the_way_at_every_update():
    policy, buffer = warmed_up(CASES["dqn_soft_squared"])
    before = weights(policy)
    policy.update(16, buffer)
    after, tau = weights(policy), policy.config.tau
    for name in policy.model.state_dict():
        target = f"target.{name}"
        expected = before[target] + tau * (after[f"model.{name}"] - before[target])
        assert_close(after[target], expected)


def test_truncated_rows_without_next_observations_do_not_bootstrap():
    case = CASES["dqn"]
    policy = warmed_up(case)[0]
    shape = policy.observation_space.shape
    targets = {}
    for ignore in (True, False):
        buffer = ReplayBuffer(4, ignore_obs_next=ignore, seed=0)
        obs = np.ones(shape, np.float32)
        buffer.add(obs=obs, act=0, rew=3.0, terminated=False, truncated=True, obs_next=obs)
        batch, rows = buffer.sample(2, fields=policy.fields)
        targets[ignore] = policy.process_fn(batch.to_device(policy.device), buffer, rows).target
    assert targets[True].tolist() == [3.0, 3.0]
    assert not torch.allclose(targets[False], torch.full((2,), 3.0))


def test_soft_actions_are_sampled_by_their_values():
    made = make(soft=True, temperature=0.5)
    answer(made.model, "head.linear.bias", 0.0, 0.5 * np.log(3.0))
    act = made(Batch(obs=np.zeros((8_000, 4), np.float32))).act
    assert np.mean(act == 1) == pytest.approx(0.75, abs=0.02)
    assert (made.predict(np.zeros((100, 4), np.float32)) == 1).all()
