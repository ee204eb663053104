"""A model that decides success ends episodes for the learner, and only for it."""

import numpy as np
import pytest

from guerdon.collect import Collector
from guerdon.data import ReplayBuffer
from guerdon.envs import make_vec
from guerdon.reward import Reward, RewardModel, Term
from guerdon.reward.controls import EnvReward
from guerdon.reward.verdicts import Standing, follow
from guerdon.training.trainers import train_reward
from tests.collect.acting import Tracing, backend_vector, make_collector
from tests.envs.walking import Pattern

LENGTHS = [Pattern((5, 2)), Pattern((3, 6))]


class Decider(RewardModel):
    """Takes the second frame of an episode (Counting's step 2) for a success."""

    episodic = True
    decides = True
    scans = ("obs_next",)
    at = 2

    def __init__(self):
        super().__init__({})
        self.standing = Standing.fresh(2)

    def scan(self, data):
        over = np.asarray(data.terminated) | np.asarray(data.truncated)
        passes = data.obs_next[..., 2] == self.at
        held, past = follow(self.standing, passes, np.asarray(data.mask), over)
        return np.where(past, -1.0, held).astype(np.float32)

    def score(self, data):
        return data.scanned > 0


def reward_of(model=None, **others):
    return Reward({"decider": Term(model or Decider(), 1.0), **others})


def collected(reward, n_step, collector=None):
    collector = collector or make_collector(backend_vector("base", LENGTHS))
    train_reward(reward, collector, collector.collect(n_step=n_step), 0)
    return collector


def test_the_learner_sees_the_success_as_an_end_and_nothing_after_it():
    reward = reward_of()
    collector = collected(reward, 20)
    rollout, _ = reward.view(collector.buffer).rollout(("obs", "obs_next", "terminated"))
    steps = rollout.obs_next[..., 2]
    assert steps[rollout.mask].max() == 2
    np.testing.assert_array_equal(rollout.terminated[rollout.mask], (steps == 2)[rollout.mask])
    np.testing.assert_array_equal(rollout.rew[rollout.mask], (steps == 2)[rollout.mask])
    assert rollout.cut[rollout.mask & rollout.terminated].all()


def test_what_the_environment_said_stays_in_the_buffer():
    reward = reward_of()
    collector = collected(reward, 20)
    batch, _ = collector.buffer.sample(0)
    ends = {(5, True), (2, True), (3, True), (6, True)}
    said = {(int(row.obs_next[2]), bool(row.terminated | row.truncated)) for row in batch}
    assert (2, False) in said  # of the episodes of five steps
    assert said <= {(1, False), (2, False), *ends}


def test_an_episode_that_was_decided_stays_so_in_the_next_round():
    reward = reward_of()
    collector = collected(reward, 6)  # three steps of each: past the success
    collected(reward, 4, collector)  # the rest of the first episode, and no success in it
    batch, _ = collector.buffer.sample(0)
    assert batch.obs_next[:, 2].max() == 2
    assert len(batch.rew) == 2 + 2 + 2  # two of each, and two of the second one's next episode


def test_samples_of_an_off_policy_learner_are_of_the_same_episodes():
    reward = reward_of()
    view = reward.view(collected(reward, 40).buffer)
    batch, _ = view.sample(64, length=3, fields=("obs", "obs_next", "terminated"))
    shown = batch.mask
    assert batch.obs_next[..., 2][shown].max() == 2
    np.testing.assert_array_equal(batch.terminated[shown], (batch.obs_next[..., 2] == 2)[shown])
    rows = np.arange(4)
    np.testing.assert_array_equal(view.get(rows, "terminated"), view[rows].terminated)


def test_only_one_model_can_decide():
    with pytest.raises(ValueError, match=r"'one' and 'two' both decide when an episode ends"):
        Reward({"one": Term(Decider(), 1.0), "two": Term(Decider(), 1.0)})


def test_other_terms_are_paid_until_the_end():
    reward = reward_of(env=Term(EnvReward({}), 0.5))
    collector = collected(reward, 20)
    rollout, _ = reward.view(collector.buffer).rollout(("obs_next", "terminated"))
    expected = rollout.terminated + 0.5 * rollout.rew_env
    np.testing.assert_allclose(rollout.rew[rollout.mask], expected[rollout.mask])


def test_a_round_that_comes_after_all_successes_teaches_nothing():
    from guerdon.policy import create_policy
    from guerdon.training.trainers import onpolicy_trainer

    env = backend_vector("base", [Pattern((9,)), Pattern((9,))])
    policy = create_policy({"type": "ppo"}, env.observation_space, env.action_space)
    collector = Collector(policy, env, policy.make_buffer(40, 2, 0))
    monitor = onpolicy_trainer(
        policy, collector, reward=reward_of(), n_step=4, batch_size=4, max_steps=12
    )
    assert monitor.progress.env_steps == 12  # the last eight of them after the successes
    assert policy.updates == 1


# --- online


def test_online_the_environment_begins_anew_at_a_success():
    env = backend_vector("base", LENGTHS)
    asked = []

    def verdicts(obs_next, done, real):
        assert real.all()
        asked.append(done.copy())
        return obs_next[:, 2] == 2

    buffer = ReplayBuffer(100, 2)
    collector = Collector(Tracing(env), env, buffer, verdicts=verdicts)
    done = collector.collect(n_step=16)
    rollout, _ = buffer.rollout()
    assert rollout.mask.all()
    np.testing.assert_array_equal(rollout.obs_next[..., 2], np.tile([[1], [2]], (4, 2)))
    np.testing.assert_array_equal(rollout.cut, rollout.obs_next[..., 2] == 2)
    assert done.lengths == [2] * 8
    assert len(asked) == 8


def test_online_memory_and_returns_begin_anew_too():
    from tests.collect.acting import Remembering

    env = backend_vector("base", [Pattern((9,))])
    buffer = ReplayBuffer(100, 1)
    collector = Collector(
        Remembering(env), env, buffer, verdicts=lambda obs, *_: np.asarray(obs)[:, 2] == 3
    )
    done = collector.collect(n_step=9)
    rows = buffer.sample(0)[0]
    np.testing.assert_array_equal(rows.policy.steps, [0, 1, 2] * 3)
    np.testing.assert_allclose(sum(done.returns), rows.rew.sum())


def test_native_vectors_begin_single_environments_anew():
    env = make_vec("guerdon/BitFlip-v0", 4, backend="native", kwargs={"n_bits": 6})
    env.reset(seed=1)
    step = env.step(np.zeros(4, np.int64))
    before = {key: part.copy() for key, part in step.obs.items()}
    obs = env.begin(np.array([1, 3]), step.obs)
    for key in before:
        np.testing.assert_array_equal(obs[key][[0, 2]], before[key][[0, 2]])
    assert (obs["desired_goal"][[1, 3]] != before["desired_goal"][[1, 3]]).any()
    assert env.can_begin


def test_online_episodes_that_are_counted_end_at_a_success():
    env = backend_vector("base", [Pattern((9,)), Pattern((9,))])
    seen = []

    def verdicts(obs_next, _, real):
        seen.append(real.tolist())
        return obs_next[:, 2] == 2 + obs_next[:, 0]  # the second environment takes a step more

    collector = Collector(Tracing(env), env, ReplayBuffer(100, 2), verdicts=verdicts)
    done = collector.collect(n_episode=3)
    assert sorted(done.lengths) == [2, 2, 3]
    assert done.n_step == 7
    assert seen == [[True, True]] * 3 + [[True, False]]


def test_pictures_that_are_kept_end_with_their_episode_online_too(tmp_path):
    from functools import partial

    from guerdon.collect.reward_data import RewardDataCollector
    from guerdon.config.schema import DataCollectionConfig
    from guerdon.data.frames import read_trajectory
    from tests.collect.showing import Showing

    env = make_vec(partial(Showing, lengths=(9,)), 1, backend="base")
    folders = {f"{kind}_dir": str(tmp_path / kind) for kind in ("positive", "negative")}
    with RewardDataCollector(DataCollectionConfig(**folders), 1) as pictures:
        collector = Collector(
            None, env, ReplayBuffer(100, 1), watch=pictures.watch,
            verdicts=lambda obs, *_: obs["state"][:, 2] == 3,
        )  # fmt: skip
        collector.collect(n_step=12, random=True)
    kept = [read_trajectory(path) for path in sorted(tmp_path.glob("*/*"))]
    assert [len(trajectory.labels) for trajectory in kept] == [3, 3, 3, 3]
