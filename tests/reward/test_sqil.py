import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.config import compose
from guerdon.data import (
    Batch,
    Demonstrations,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    save_demonstrations,
)
from guerdon.data.batch import flatten
from guerdon.policy import create_policy
from guerdon.reward import Setting, create_reward_model, make_reward
from guerdon.training.parts import make_parts
from guerdon.training.run import train
from guerdon.training.trainers import offpolicy_trainer
from tests.training.running import assert_same_run

VECTOR = spaces.Box(-np.inf, np.inf, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (4, 4, 1), np.uint8)
PARTS = spaces.Dict({"a": VECTOR, "b": IMAGE})
TWO = spaces.Discrete(2)
ARM = spaces.Box(-1, 1, (2,), np.float32)
DEMONSTRATED = 100  # observations from here on are the experts'


def values(space, numbers):
    """Observations or actions that tell a number."""
    if isinstance(space, spaces.Dict):
        return {key: values(part, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return numbers % 2
    rows = np.broadcast_to(
        numbers.reshape(-1, *[1] * len(space.shape)), (len(numbers), *space.shape)
    )
    return rows.astype(space.dtype)


def rows_of(numbers, observation_space=VECTOR, action_space=TWO):
    numbers = np.asarray(numbers)
    return Batch(
        obs=values(observation_space, numbers),
        act=values(action_space, numbers),
        rew=np.full(len(numbers), 7.0),
        terminated=np.zeros(len(numbers), bool),
        truncated=np.zeros(len(numbers), bool),
        obs_next=values(observation_space, numbers + 1),
    )


def experts(observation_space=VECTOR, action_space=TWO, lengths=(4, 3)):
    episodes, start = [], DEMONSTRATED
    for length in lengths:
        episode = rows_of(np.arange(start, start + length), observation_space, action_space)
        episode.terminated[-1] = True
        episodes.append(episode)
        start += length + 10
    return Demonstrations(episodes)


def agent_buffer(n_rows=20, kind=ReplayBuffer, observation_space=VECTOR, action_space=TWO):
    buffer = kind(n_rows, seed=0)
    buffer.extend(rows_of(np.arange(n_rows), observation_space, action_space))
    return buffer


def make(observation_space=VECTOR, action_space=TWO, demonstrations=None, **options):
    setting = Setting(observation_space, action_space, on_policy=False, seed=3)
    reward = make_reward({"type": "sqil", **options}, setting)
    reward.models[0].load_expert_data(demonstrations or experts(observation_space, action_space))
    return reward


def resolved(reward, buffer, number, length=1):
    view = reward.view(reward.replay(buffer), torch.device("cpu"))
    return view.sample(number, length, ("obs", "act", "rew", "terminated", "obs_next"))[0]


@pytest.mark.parametrize("length", [1, 3])
def test_demonstrations_are_worth_1_all_else_0_and_are_half_of_every_batch(length):
    reward, buffer = make(), agent_buffer()
    for _ in range(5):
        batch = resolved(reward, buffer, 40, length)
        demonstrated = batch.obs[..., 0] >= DEMONSTRATED
        assert demonstrated.reshape(length, 40)[0].sum() == 20
        assert torch.equal(batch.rew, demonstrated.float())
        assert (batch.rew_env == 7.0).all()


def test_segments_of_demonstrations_end_with_their_episodes():
    batch = resolved(make(), agent_buffer(), 200, 3)
    of_experts = batch.source[0] == 1
    numbers, mask = batch.obs[..., 0][:, of_experts], batch.mask[:, of_experts]
    last_of_four = numbers[0] == DEMONSTRATED + 3
    assert last_of_four.any()
    assert not mask[1:, last_of_four].any()
    assert batch.terminated[0, of_experts][last_of_four].all()
    np.testing.assert_array_equal(numbers[1][mask[1]], numbers[0][mask[1]] + 1)


def test_demonstrations_are_stored_as_a_buffer_stores_episodes():
    reward, like = make(), ReplayBuffer(7, seed=0)
    for episode in experts().episodes:
        like.extend(episode)
    held = reward.replay(agent_buffer())["demonstrations"]
    rows = like.stored_rows()
    np.testing.assert_array_equal(held.stored_rows(), rows)
    np.testing.assert_array_equal(held.next(rows), like.next(rows))
    np.testing.assert_array_equal(held[rows].obs_next, like[rows].obs_next)
    np.testing.assert_array_equal(held.unfinished_index(), like.unfinished_index())


@pytest.mark.parametrize(("share", "expected"), [(0.25, 10), (0.9, 36)])
def test_the_share_of_demonstrations_is_an_option(share, expected):
    assert resolved(make(share=share), agent_buffer(), 40).rew.sum() == expected


def test_a_few_demonstrations_fill_half_of_a_large_batch():
    reward = make(demonstrations=experts(lengths=(1,)))
    assert resolved(reward, agent_buffer(), 256).rew.sum() == 128


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("observation_space", [VECTOR, IMAGE, PARTS], ids=["v", "images", "parts"])
def test_it_takes_observations_and_actions_of_all_kinds(observation_space, action_space):
    reward = make(observation_space, action_space)
    buffer = agent_buffer(20, ReplayBuffer, observation_space, action_space)
    batch = resolved(reward, buffer, 8)
    assert batch.rew.sum() == 4
    held = reward.replay(buffer)["demonstrations"]
    stored, wanted = (dict(flatten({"obs": each.obs, "act": each.act})) for each in (held, buffer))
    assert {path: leaf.dtype for path, leaf in stored.items()} == {
        path: leaf.dtype for path, leaf in wanted.items()
    }


def test_demonstrations_take_the_precision_of_what_is_collected():
    demonstrations = experts(action_space=ARM)
    for episode in demonstrations.episodes:
        episode.act = episode.act.astype(np.float64)
    reward = make(action_space=ARM, demonstrations=demonstrations)
    mixed = reward.replay(agent_buffer(action_space=ARM))
    assert mixed["demonstrations"].act.dtype == np.float32


def test_demonstrations_as_tensors_are_taken():
    demonstrations = Demonstrations([each.to_torch() for each in experts().episodes])
    assert resolved(make(demonstrations=demonstrations), agent_buffer(), 8).rew.sum() == 4


def test_demonstrations_are_tensors_beside_a_buffer_of_tensors():
    buffer, reward = ReplayBuffer(20, seed=0, storage="cpu"), make()
    buffer.extend(rows_of(np.arange(20)))
    batch = resolved(reward, buffer, 8)
    assert isinstance(reward.replay(buffer)["demonstrations"].obs, torch.Tensor)
    assert batch.rew.tolist() == (batch.obs[:, 0] >= DEMONSTRATED).float().tolist()
    assert batch.rew.sum() == 4


def test_what_a_transition_is_worth_depends_on_its_source_alone():
    model = create_reward_model({"type": "sqil"})
    data = rows_of([0, 1, 2]).replace(source=np.array([0, 1, 1]))
    before = copy.deepcopy(data)
    assert model.estimate(data).rew.tolist() == [0.0, 1.0, 1.0]
    assert model.estimate(data[::-1]).rew.tolist() == [1.0, 1.0, 0.0]
    assert data == before
    tensors = data.to_torch()
    assert isinstance(model.estimate(tensors).rew, torch.Tensor)
    assert model.estimate(tensors).rew.tolist() == [0.0, 1.0, 1.0]


def test_transitions_without_a_source_are_the_policys_own():
    model = create_reward_model({"type": "sqil"})
    assert model.estimate(rows_of([0, 100])).rew.tolist() == [0.0, 0.0]
    assert model.estimate([{"obs": [1.0], "action": 0, "reward": 5.0}])[0]["reward"] == 0.0


def test_a_view_of_both_buffers_reads_by_index():
    reward, buffer = make(), agent_buffer()
    mixed = reward.replay(buffer)
    batch, rows = mixed.sample(12, 2)
    view = reward.view(mixed, torch.device("cpu"))
    np.testing.assert_array_equal(view[rows].obs, batch.obs)
    np.testing.assert_array_equal(view.rew[rows[0]], batch.source[0] == 1)
    np.testing.assert_array_equal(view.get(rows, "act"), batch.act)
    assert len(view) == 27


# --- with policies


def policy_of(kind, **options):
    actions = TWO if kind == "dqn" else ARM
    return create_policy({"type": kind, "model": {"hidden": [8]}, **options}, VECTOR, actions)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", ["dqn", "sac", "td3", "ddpg"])
def test_every_off_policy_policy_learns_from_both(kind, n_step):
    policy = policy_of(kind, n_step=n_step, gamma=0.9)
    actions = policy.action_space
    buffer = agent_buffer(20, ReplayBuffer, VECTOR, actions)
    seen = []
    learn = policy.learn
    policy.learn = lambda batch, **options: seen.append(batch) or learn(batch, **options)
    reward = make(action_space=actions)
    policy.update(16, reward.replay(buffer), reward)
    returns = seen[0].returns.numpy()
    demonstrated = seen[0].obs[:, 0].numpy() >= DEMONSTRATED
    assert demonstrated.sum() == 8
    assert (returns[~demonstrated] == 0.0).all()
    assert (returns[demonstrated] >= 1.0).all()


def test_priorities_of_the_policys_own_buffer_are_kept_up():
    policy = policy_of("dqn", prioritized=True, beta=0.4)
    buffer = agent_buffer(kind=PrioritizedReplayBuffer)
    policy.advance(0, 0.5)
    reward = make()
    before = buffer.priorities
    policy.update(16, reward.replay(buffer), reward)
    assert buffer.beta == pytest.approx(0.7)
    assert (buffer.priorities != before).sum() >= 4


def test_a_trainer_hands_the_policy_both_buffers_and_stores_into_one():
    config = compose({
        "env": {"id": "CartPole-v1", "n_envs": 2},
        "policy": {"type": "dqn", "model": {"hidden": [8]}},
        "collect": {"n_step": 8, "warmup_steps": 16, "buffer_size": 64},
        "run": {"device": "cpu"},
    })  # fmt: skip
    parts = make_parts(config)
    space = parts.env.observation_space
    reward = make_reward({"type": "sqil"}, Setting(space, parts.env.action_space, on_policy=False))
    reward.models[0].load_expert_data(Demonstrations([rows_of(np.arange(9), space)]))
    shares = []
    resolve = reward.resolve

    def noted(*read):
        batch = resolve(*read)
        shares.append(float(batch.rew.mean()))
        return batch

    reward.resolve = noted
    offpolicy_trainer(
        parts.policy, parts.collector, reward=reward, n_step=8, batch_size=16, warmup_steps=16,
        max_steps=64,
    )  # fmt: skip
    parts.close()
    assert len(shares) > 3
    assert set(shares) == {0.5}
    assert len(parts.buffer) <= 64
    assert len(reward.replay(parts.buffer)["demonstrations"]) == 9


def test_it_goes_on_exactly_where_its_state_was_taken():
    one, other = make(), make()
    buffer = agent_buffer()
    mixed = one.replay(buffer)
    for _ in range(3):
        mixed.sample(7)  # an odd number: the generator decides whose the odd row is
    other.load_training_state(one.training_state())
    resumed = other.replay(copy.deepcopy(buffer))
    for _ in range(5):
        np.testing.assert_array_equal(mixed.sample(7)[1], resumed.sample(7)[1])


def test_a_run_that_stops_and_goes_on_is_one_that_never_stopped(tmp_path):
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    save_demonstrations(experts(space), tmp_path / "experts")
    config = {
        "env": {"id": "CartPole-v1", "n_envs": 3},
        "policy": {"type": "dqn", "n_step": 3, "prioritized": True, "beta": 1.0},
        "reward": {"type": "sqil", "expert_data_path": str(tmp_path / "experts")},
        "collect": {"n_step": 8, "warmup_steps": 16, "buffer_size": 60},
        "learn": {"batch_size": 15},
        "eval": {"every": 48, "episodes": 2},
        "run": {"max_steps": 96, "checkpoint_every": 48, "log_every": 48},
    }
    train(config, f"run.dir={tmp_path / 'whole'}", display="none")
    train(config, f"run.dir={tmp_path / 'half'}", "run.max_steps=48", display="none")
    train(None, "run.max_steps=96", resume=tmp_path / "half", display="none")
    assert_same_run(tmp_path / "whole", tmp_path / "half")


# --- errors


def test_a_policy_without_a_buffer_is_refused():
    with pytest.raises(ValueError, match="'sqil' needs a policy with a replay buffer"):
        make_reward({"type": "sqil"}, Setting(VECTOR, TWO, on_policy=True))


def test_demonstrations_have_to_be_there_and_to_fit():
    with pytest.raises(ValueError, match="'expert_data_path'"):
        create_reward_model({"type": "sqil"}).load_expert_data()
    with pytest.raises(ValueError, match="obs of the demonstrations"):
        make(observation_space=IMAGE, demonstrations=experts())


@pytest.mark.parametrize("other", ["sqil", "her", "pwil"])
def test_terms_that_cannot_score_demonstrations_are_refused(other):
    space = spaces.Dict({"achieved_goal": VECTOR, "desired_goal": VECTOR})
    setting = Setting(space, TWO, on_policy=False, horizon=5)
    options = {"reward_function": max} if other == "her" else {}
    with pytest.raises(ValueError, match=r"'sqil' adds transitions .* 'other' cannot"):
        make_reward({"terms": {"sqil": {}, "other": {"type": other, **options}}}, setting)


def test_other_terms_may_stand_beside_it():
    terms = {"sqil": {}, "constant": {"value": 2.0}}
    reward = make_reward({"terms": terms}, Setting(VECTOR, TWO, on_policy=False))
    reward.models[0].load_expert_data(experts())
    assert set(resolved(reward, agent_buffer(), 8).rew.tolist()) == {2.0, 3.0}


def test_normalising_rewards_that_are_always_0_is_refused():
    with pytest.raises(ValueError, match=r"'reward.normalize'.*'reward.scale'"):
        make_reward({"type": "sqil", "normalize": True}, Setting(VECTOR, TWO, on_policy=False))


def test_transitions_of_the_policy_are_compared_and_never_well_paid():
    model = make().terms["sqil"].model
    rows = rows_of([DEMONSTRATED, 10 * DEMONSTRATED]).to_device(torch.device("cpu"))
    assert model.ood(rows)[1] == 1 > model.ood(rows)[0]
    assert not model.reference.well_paid(torch.zeros(2)).any()
