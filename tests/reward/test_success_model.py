"""A success model ends episodes for the learner, or online for the environment, too."""

import numpy as np
import pytest
import torch

from guerdon.collect import Collector
from guerdon.data import ReplayBuffer
from guerdon.envs import make_vec
from guerdon.reward import Reward, SuccessModel, Term
from guerdon.reward.controls import EnvReward
from guerdon.reward.success_classifier import SuccessMemory
from guerdon.training.trainers import train_reward
from tests.collect.acting import Remembering, Tracing, backend_vector, make_collector
from tests.envs.walking import Pattern
from tests.rounding import assert_close

LENGTHS = [Pattern((5, 2)), Pattern((3, 6))]


class Known(SuccessModel):
    """Predicts success by a function of the next observation: at step 2 of Counting by default.

    Attributes:
        calls: Which rows were transitions in each call of `ends`.
    """

    annotations = ("paid", "after_success")
    reads = ("obs_next",)
    new_memory = SuccessMemory

    def __init__(self, function=lambda obs: obs[..., 2] == 2, online=False):
        super().__init__({})
        self.function, self.ends_online, self.calls = function, online, []

    def annotate(self, batch, memory):
        success = self.function(batch.obs_next)
        held, after, _ = memory.follow(success, success, batch.mask, batch.first, 1)
        return {"paid": held & ~after, "after_success": after}, memory

    def score(self, batch):
        return batch.paid

    def ends(self, obs_next, done, real, memory):  # noqa: ARG002
        self.calls.append(real.tolist())
        return self.function(obs_next)


def reward_of(model=None, **others):
    return Reward({"success": Term(model or Known(), 1.0), **others})


def collected(reward, n_step, collector=None):
    collector = collector or make_collector(backend_vector("base", LENGTHS), reward=reward)
    collector.collect(n_step=n_step)
    train_reward(reward, collector, 0)
    return collector


def view_of(reward, collector):
    return reward.view(collector.buffer, torch.device("cpu"))


def test_the_learner_reads_a_success_as_an_end_and_nothing_after_it():
    reward = reward_of()
    collector = collected(reward, 20)
    rollout, _ = view_of(reward, collector).rollout(("obs", "obs_next", "terminated"))
    rollout = rollout.to_numpy()
    steps = rollout.obs_next[..., 2]
    assert steps[rollout.mask].max() == 2
    np.testing.assert_array_equal(rollout.terminated[rollout.mask], (steps == 2)[rollout.mask])
    np.testing.assert_array_equal(rollout.rew[rollout.mask], (steps == 2)[rollout.mask])
    assert rollout.cut[rollout.mask & rollout.terminated].all()


def test_the_buffer_keeps_the_ends_of_the_environment():
    reward = reward_of()
    collector = collected(reward, 20)
    batch, _ = collector.buffer.sample(0)
    ends = {(5, True), (2, True), (3, True), (6, True)}
    said = {(int(row.obs_next[2]), bool(row.terminated | row.truncated)) for row in batch}
    assert (2, False) in said  # of the episodes of five steps
    assert said <= {(1, False), (2, False), *ends}


def test_an_episode_that_has_ended_stays_so_in_the_next_round():
    reward = reward_of()
    collector = collected(reward, 6)  # three steps of each: past the success
    collected(reward, 4, collector)  # the rest of the first episode, and no success in it
    batch, _ = collector.buffer.sample(0)
    assert batch.obs_next[:, 2].max() == 2
    assert len(batch.rew) == 2 + 2 + 2  # two of each, and two of the second one's next episode


def test_segments_stop_at_a_success():
    reward = reward_of()
    view = view_of(reward, collected(reward, 40))
    batch, _ = view.sample(64, length=3, fields=("obs", "obs_next", "terminated"))
    batch = batch.to_numpy()
    shown = batch.mask
    assert batch.obs_next[..., 2][shown].max() == 2
    np.testing.assert_array_equal(batch.terminated[shown], (batch.obs_next[..., 2] == 2)[shown])
    rows = view.stored_rows()[:4]
    np.testing.assert_array_equal(view.get(rows, "terminated"), view[rows].terminated)
    np.testing.assert_array_equal(view.get(rows, "done"), view[rows].done)
    assert (view[rows].done >= view[rows].terminated).all()


def test_only_one_model_can_end_episodes():
    with pytest.raises(ValueError, match=r"'one' and 'two' both end episodes at a success"):
        Reward({"one": Term(Known(), 1.0), "two": Term(Known(), 1.0)})


def test_other_terms_are_paid_until_the_end():
    reward = reward_of(env=Term(EnvReward({}), 0.5))
    collector = collected(reward, 20)
    rollout, _ = view_of(reward, collector).rollout(("obs_next", "terminated"))
    rollout = rollout.to_numpy()
    expected = rollout.terminated + 0.5 * rollout.rew_env
    assert_close(rollout.rew[rollout.mask], expected[rollout.mask])


def test_a_rollout_after_all_successes_has_no_update():
    from guerdon.policy import create_policy
    from guerdon.training.trainers import onpolicy_trainer

    env = backend_vector("base", [Pattern((9,)), Pattern((9,))])
    policy = create_policy({"type": "ppo"}, env.observation_space, env.action_space)
    reward = reward_of()
    collector = Collector(policy, env, policy.make_buffer(40, 2, 0), reward=reward)
    monitor = onpolicy_trainer(
        policy, collector, reward=reward, n_step=4, batch_size=4, max_steps=12
    )
    assert monitor.progress.env_steps == 12  # the last eight of them after the successes
    assert policy.updates == 1


# --- online


def test_online_resets_the_environment_at_a_success():
    env = backend_vector("base", LENGTHS)
    model, buffer = Known(online=True), ReplayBuffer(100, 2)
    done = Collector(Tracing(env), env, buffer, reward=reward_of(model)).collect(n_step=16)
    rollout, _ = buffer.rollout()
    assert rollout.mask.all()
    np.testing.assert_array_equal(rollout.obs_next[..., 2], np.tile([[1], [2]], (4, 2)))
    np.testing.assert_array_equal(rollout.cut, rollout.obs_next[..., 2] == 2)
    assert done.lengths == [2] * 8
    assert model.calls == [[True, True]] * 8


def test_online_resets_recurrent_state_and_returns_too():
    env = backend_vector("base", [Pattern((9,))])
    reward, buffer = reward_of(Known(lambda obs: obs[..., 2] == 3, True)), ReplayBuffer(100, 1)
    done = Collector(Remembering(env), env, buffer, reward=reward).collect(n_step=9)
    rows = buffer.sample(0)[0]
    np.testing.assert_array_equal(rows.policy.steps, [0, 1, 2] * 3)
    assert_close(sum(done.returns), rows.rew.sum())


def test_native_vectors_reset_single_environments():
    env = make_vec("guerdon/BitFlip-v0", 4, backend="native", kwargs={"n_bits": 6})
    env.reset(seed=1)
    step = env.step(np.zeros(4, np.int64))
    before = {key: part.copy() for key, part in step.obs.items()}
    obs = env.begin(np.array([1, 3]), step.obs)
    for key in before:
        np.testing.assert_array_equal(obs[key][[0, 2]], before[key][[0, 2]])
    assert (obs["desired_goal"][[1, 3]] != before["desired_goal"][[1, 3]]).any()
    assert env.can_begin


def test_online_ends_counted_episodes_at_a_success():
    env = backend_vector("base", [Pattern((9,)), Pattern((9,))])
    model = Known(lambda obs: obs[..., 2] == 2 + obs[..., 0], True)  # the second: a step later
    collector = Collector(Tracing(env), env, ReplayBuffer(100, 2), reward=reward_of(model))
    done = collector.collect(n_episode=3)
    assert sorted(done.lengths) == [2, 2, 3]
    assert done.n_step == 7
    assert model.calls == [[True, True]] * 3 + [[True, False]]


def test_online_ends_collected_trajectories_too(tmp_path):
    from functools import partial

    from guerdon.collect.reward_data import RewardDataCollector
    from guerdon.config.schema import DataCollectionConfig
    from guerdon.data.frames import read_trajectory
    from tests.collect.showing import Showing

    env = make_vec(partial(Showing, lengths=(9,)), 1, backend="base")
    folders = {f"{kind}_dir": str(tmp_path / kind) for kind in ("positive", "negative")}
    reward = reward_of(Known(lambda obs: obs["state"][..., 2] == 3, True))
    with RewardDataCollector(DataCollectionConfig(**folders), 1) as images:
        collector = Collector(None, env, ReplayBuffer(100), reward=reward, watch=images.watch)
        collector.collect(n_step=12, random=True)
    kept = [read_trajectory(path) for path in sorted(tmp_path.glob("*/*"))]
    assert [len(trajectory.labels) for trajectory in kept] == [3, 3, 3, 3]
