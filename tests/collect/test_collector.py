"""What a collector stores and says is what happened, however environments reset and wherever."""

import logging
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.collect import Collector
from guerdon.data import Batch, ReplayBuffer, Rollout
from guerdon.envs import VectorEnv, make_vec
from guerdon.reward import EpisodeRewardModel, make_reward
from tests.collect.acting import (
    FIELDS,
    Follower,
    Remembering,
    Tracing,
    action_for,
    backend_vector,
    check_first,
    check_true,
    make_collector,
    modes_vector,
    reported,
    rows_of,
)
from tests.collect.succeeding import Succeeding
from tests.envs.walking import Pattern

PATTERNS = st.builds(
    Pattern,
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    truncates=st.lists(st.booleans(), min_size=1, max_size=3),
)
VECTORS = st.lists(PATTERNS, min_size=1, max_size=4)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("n_step"), st.integers(1, 30)),
        st.tuples(st.just("n_episode"), st.integers(1, 9)),
        st.tuples(st.just("break_off"), st.just(0)),
    ),
    min_size=1,
    max_size=6,
)
# Environments of very different lengths, and with one that ends at every step.
MIXED = [
    Pattern((3, 5, 1), (False, True)),
    Pattern((1,), (False,)),
    Pattern((7, 2), (True, False)),
]
KINDS = [*AutoresetMode, "base", "subprocess", "async_subprocess"]


def make_vector(kind, patterns=MIXED, **options):
    if isinstance(kind, AutoresetMode):
        return modes_vector(kind, patterns)
    return backend_vector(kind, patterns, **options)


CONTAINERS = [ReplayBuffer, Rollout]
both_containers = pytest.mark.parametrize("container", CONTAINERS)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: getattr(kind, "name", kind))


@pytest.fixture(scope="module")
def vectors():
    """Process environments that several tests use one after the other, each from a reset."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = make_vector(kind)
        return made[kind]

    yield get
    for env in made.values():
        env.close()


def follow(follower, calls):
    for name, amount in calls:
        if name == "break_off":
            follower.break_off()
            continue
        collected, new = follower.collect(**{name: amount})
        n_envs = len(follower.patterns)
        if name == "n_step":
            assert amount <= collected.n_step < amount + n_envs
        else:
            check_shares(new, follower.patterns, amount)
    if any(follower.stored) and isinstance(follower.collector.buffer, ReplayBuffer):
        follower.check_buffer()


def check_shares(new, patterns, n_episode):
    """Every environment brings its first episodes, whole: as many as every other, or one more."""
    shares = []
    for rows, pattern in zip(new, patterns, strict=True):
        episodes = sorted({episode for episode, _ in rows})
        assert episodes == list(range(len(episodes)))
        assert len(rows) == sum(map(pattern.length, episodes))
        shares.append(len(episodes))
    assert sum(shares) == n_episode
    assert max(shares) - min(shares) <= 1


# --- transitions


@settings(max_examples=60)
@given(st.sampled_from(AutoresetMode), VECTORS, CALLS, st.booleans(), st.sampled_from(CONTAINERS))
def test_any_calls_in_any_autoreset_mode_store_true_transitions(
    mode, patterns, calls, copy, container
):
    env = modes_vector(mode, patterns, copy)
    follow(Follower(make_collector(env, container=container), patterns), calls)


@settings(max_examples=40)
@given(VECTORS, CALLS, st.sampled_from(CONTAINERS))
def test_any_calls_on_the_base_backend_store_true_transitions(patterns, calls, container):
    env = backend_vector("base", patterns)
    follow(Follower(make_collector(env, container=container), patterns), calls)


@pytest.mark.parametrize("backend", ["subprocess", "async_subprocess"])
@settings(max_examples=15)
@given(calls=CALLS, container=st.sampled_from(CONTAINERS))
def test_any_calls_on_processes_store_true_transitions(vectors, backend, calls, container):
    follow(Follower(make_collector(vectors(backend), container=container), MIXED), calls)


@every_kind
def test_the_last_row_of_an_episode_has_its_final_observation(vectors, kind):
    collector = make_collector(vectors(kind))
    collector.collect(n_episode=9)
    batch, _ = collector.buffer.sample(0)
    over = batch.terminated | batch.truncated
    assert over.sum() == 9
    lengths = [MIXED[env].length(episode) for env, episode, _ in batch.obs[over]]
    np.testing.assert_array_equal(batch.obs_next[over][:, 2], lengths)
    np.testing.assert_array_equal(batch.obs_next[over][:, :2], batch.obs[over][:, :2])


def test_a_reset_row_of_gymnasium_is_not_stored_counted_or_paid():
    env = modes_vector(AutoresetMode.NEXT_STEP, [Pattern((1,), (False,))])
    collector = make_collector(env)
    collected = collector.collect(n_step=4)
    assert collector.policy.calls == 7  # three of them for resets
    assert collected.n_step == 4
    assert collected.returns == [1.0] * 4
    assert collected.lengths == [1] * 4
    assert len(collector.buffer) == 4


@every_kind
def test_a_rollout_of_what_is_fresh_says_where_episodes_are_cut(vectors, kind):
    collector = make_collector(vectors(kind))
    collector.collect(n_step=17)
    collector.collect(n_step=11)
    fresh, _ = collector.fresh(("obs", "terminated", "truncated"))
    over = fresh.terminated | fresh.truncated
    newest = fresh.mask & (fresh.mask[::-1].cumsum(0)[::-1] == 1)
    np.testing.assert_array_equal(fresh.cut, over | newest | ~fresh.mask)


def test_fresh_is_what_the_last_call_stored_after_the_ring_has_wrapped_around():
    patterns = [Pattern((4,)), Pattern((3,))]
    env = backend_vector("base", patterns)
    collector = Collector(Tracing(env), env, ReplayBuffer(40, 2, seed=0))
    follower = Follower(collector, patterns)
    for _ in range(9):
        follower.collect(n_step=14)
    assert len(collector.buffer) == 40


def test_a_buffer_that_is_emptied_between_calls_gets_what_is_new():
    collector = make_collector(modes_vector(AutoresetMode.NEXT_STEP, MIXED))
    follower = Follower(collector, MIXED)
    for _ in range(5):
        _, new = follower.collect(n_step=10)
        batch, _ = collector.buffer.rollout(FIELDS)
        assert [check_true(rows_of(batch, env), env, MIXED[env]) for env in range(3)] == new
        collector.buffer.reset()


def test_info_is_stored_with_the_transition_it_belongs_to():
    for mode in AutoresetMode:
        collector = make_collector(modes_vector(mode, MIXED), store_info=True)
        collector.collect(n_step=60)
        batch, _ = collector.buffer.sample(0)
        np.testing.assert_array_equal(batch.info.step, batch.rew)


# --- episodes


@every_kind
def test_every_environment_brings_its_share_of_episodes_however_long_they_are(vectors, kind):
    # Whoever takes the first five that end takes them all from the second environment.
    collected = make_collector(vectors(kind)).collect(n_episode=5)
    assert reported(collected) == [(1, 1.0), (1, 1.0), (3, 6.0), (5, 15.0), (7, 28.0)]
    assert collected.n_step == 17
    assert collected.n_episode == 5


def test_a_collector_that_takes_the_first_to_end_would_fail_that_test():
    class Hasty(Collector):
        def _shares(self, n_episode):
            return np.full(self.env.n_envs, n_episode)

        def _finish(self, ended, done, info, collected):
            super()._finish(ended, done, info, collected)
            if collected.n_episode >= 5:
                raise StopIteration(collected)

    env = make_vector("base")
    with pytest.raises(StopIteration) as stopped:
        Hasty(Tracing(env), env).collect(n_episode=5)
    assert reported(stopped.value.value) != [(1, 1.0), (1, 1.0), (3, 6.0), (5, 15.0), (7, 28.0)]


@settings(max_examples=40)
@given(st.sampled_from(AutoresetMode), VECTORS, st.integers(1, 12), st.integers(0, 9))
def test_the_episodes_are_the_same_whatever_was_collected_before(mode, patterns, number, before):
    collector = make_collector(modes_vector(mode, patterns))
    fresh = make_collector(modes_vector(mode, patterns)).collect(n_episode=number)
    if before:
        collector.collect(n_step=before)
    assert reported(collector.collect(n_episode=number)) == reported(fresh)


@every_kind
def test_fewer_episodes_than_environments_leave_the_others_out(vectors, kind):
    collector = make_collector(vectors(kind))
    assert reported(collector.collect(n_episode=2)) == [(1, 1.0), (3, 6.0)]
    assert sorted(set(collector.buffer.sample(0)[0].obs[:, 0].tolist())) == [0, 1]


@every_kind
def test_an_episode_that_spans_calls_is_reported_once_and_whole(vectors, kind):
    collector = make_collector(vectors(kind))
    calls = [collector.collect(n_step=2) for _ in range(40)]
    rows = collector.buffer.sample(0)[0]
    over = rows.terminated | rows.truncated
    assert sum(call.n_episode for call in calls) == over.sum()
    lengths = sorted(length for call in calls for length in call.lengths)
    assert lengths == sorted(rows.obs_next[over][:, 2].tolist())
    assert all(r == n * (n + 1) / 2 for call in calls for n, r in reported(call))


@both_containers
def test_episodes_that_were_broken_off_are_not_reported(container):
    collector = make_collector(backend_vector("base", [Pattern((4,))]), container=container)
    assert collector.collect(n_step=3).lengths == []
    collector.break_off()
    collected = collector.collect(n_step=4)
    assert reported(collected) == [(4, 10.0)]
    batch, _ = collector.buffer.rollout(("obs", "terminated", "truncated"))
    assert batch.cut[:, 0].tolist() == [False, False, True, False, False, False, True]
    assert not batch.terminated[2] | batch.truncated[2]


def test_without_a_buffer_returns_and_lengths_are_the_same():
    for kind in (*AutoresetMode, "base"):
        env = make_vector(kind)
        alone = Collector(Tracing(env), env).collect(n_step=50)
        assert reported(alone) == reported(make_collector(make_vector(kind)).collect(n_step=50))


def succeeding(backend, *keys, always=True):
    """An environment for each tuple of names by which it tells."""
    return make_vec(
        "tests.collect.succeeding:Succeeding",
        len(keys),
        backend=backend,
        kwargs={"always": always},
        settings=[{"number": i, "keys": names} for i, names in enumerate(keys)],
    )


@pytest.mark.parametrize("backend", ["base", "async_subprocess"])
@pytest.mark.parametrize(("key", "always"), [("success", True), ("is_success", False)])
def test_success_is_what_the_environment_says_at_the_end(backend, key, always):
    with succeeding(backend, (key,), (key,), always=always) as env:
        collected = Collector(Tracing(env), env).collect(n_episode=6)
    assert sorted(collected.successes) == [False, False, True, True, True, True]
    assert collected.success_rate == pytest.approx(2 / 3)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("always", [True, False])
def test_success_is_that_of_the_episode_that_ended_in_all_autoreset_modes(mode, always):
    makers = [partial(Succeeding, ("success",), always, number=i) for i in range(2)]
    env = VectorEnv(SyncVectorEnv(makers, autoreset_mode=mode))
    collected = Collector(Tracing(env), env).collect(n_episode=6)
    assert sorted(collected.successes) == [False, False, True, True, True, True]


def test_an_environment_that_does_not_tell_has_no_success_rate():
    env = succeeding("base", (), ())
    collected = Collector(Tracing(env), env).collect(n_episode=6)
    assert collected.successes == []
    assert collected.success_rate is None


def test_environments_that_do_not_tell_are_no_failures_of_those_that_do():
    env = succeeding("base", (), ("success",), ())
    collected = Collector(Tracing(env), env).collect(n_episode=9)
    assert sorted(collected.successes) == [False, True, True]


def test_environments_may_tell_by_different_names_or_by_both():
    env = succeeding("base", ("is_success",), ("success",), ("success", "is_success"))
    collected = Collector(Tracing(env), env).collect(n_episode=6)
    assert sorted(collected.successes) == [False, False, False, True, True, True]


# --- acting


@every_kind
def test_memory_is_zero_at_the_start_of_episodes_and_belongs_to_its_environment(vectors, kind):
    env = vectors(kind)
    collector = make_collector(env, Remembering(env))
    for call in ({"n_step": 23}, {"n_step": 8}, {"n_episode": 7}, {"n_step": 30}):
        collector.collect(**call)
    rows = collector.buffer.sample(0)[0]
    np.testing.assert_array_equal(rows.policy.steps, rows.obs[:, 2])
    own = np.where(rows.obs[:, 2] == 0, 0, rows.obs[:, 0] + 1)
    np.testing.assert_array_equal(rows.policy.number, own)


@every_kind
def test_memory_is_right_after_random_actions(vectors, kind):
    seen = []

    class Telling(Remembering):
        def forward(self, batch, state=None):
            output = super().forward(batch, state)
            seen.extend(zip(batch.obs[:, 2].tolist(), output.policy.steps.tolist(), strict=True))
            return Batch(act=output.act, state=output.state)

    env = vectors(kind)
    collector = Collector(Telling(env), env)
    collector.collect(n_step=20, random=True)
    for _ in range(5):
        collector.collect(n_step=20)
        collector.collect(n_step=15, random=True)
    # It did not see random steps, so it may know of fewer steps than there were, but never of more.
    # One of each environment's steps in a call may have been begun, at random, in the call before.
    assert len(seen) >= 5 * (20 - env.n_envs)
    assert all(knows <= step for step, knows in seen)
    assert any(knows == step > 2 for step, knows in seen)


def test_random_actions_are_of_the_space_and_the_policy_is_not_asked():
    env = backend_vector("base", MIXED)
    collector = Collector(Tracing(env), env, ReplayBuffer(1000, 3), seed=4)
    collected = collector.collect(n_step=300, random=True)
    acts = collector.buffer.sample(0)[0].act
    assert collector.policy.calls == 0
    assert collected.n_step == 300
    assert set(acts.tolist()) == {0, 1, 2, 3}
    again = Collector(Tracing(env), env, ReplayBuffer(1000, 3), seed=4)
    again.collect(n_step=300, random=True)
    np.testing.assert_array_equal(again.buffer.sample(0)[0].act, acts)


def test_inference_mode_is_on_while_acting_and_off_again():
    env = backend_vector("base", MIXED)
    make_collector(env).collect(n_step=3)  # the policy asserts it
    assert not torch.is_inference_mode_enabled()


def test_asynchronous_actions_go_to_the_environment_they_are_for(vectors):
    env = vectors("async_subprocess")
    collector = make_collector(env)
    subsets = set()
    step = env.step

    def spying(act, env_ids=None):
        answer = step(act, env_ids)
        subsets.add(tuple(answer.env_ids.tolist()))
        return answer

    env.step = spying
    try:
        for _ in range(20):  # on a busy machine all may be ready every time
            collector.collect(n_step=200)
            if any(len(subset) < 3 for subset in subsets):
                break
    finally:
        del env.step
    assert any(len(subset) < 3 for subset in subsets)
    rows = collector.buffer.sample(0)[0]
    np.testing.assert_array_equal(rows.act, action_for(rows.obs))
    np.testing.assert_array_equal(rows.policy.seen, rows.obs)


# --- environments that fail


@pytest.fixture
def _quiet():
    logging.getLogger("guerdon.envs.subprocess").setLevel(logging.ERROR)
    yield
    logging.getLogger("guerdon.envs.subprocess").setLevel(logging.NOTSET)


def failing(backend, fails_at, failure="raise", **options):
    patterns = [Pattern((4,), (True,)), Pattern((3, 5, 1))]
    own = [{}, {"fails_at": fails_at, "failure": failure}]
    return backend_vector(backend, patterns, own, max_restarts=100, **options)


# Each life of the second environment: 3 rows, 5 rows, 1 row, …, until it fails.
LIVES = {1: [], 2: [], 4: [3], 6: [3], 9: [3, 5], 10: [3, 5, 1]}
FAILURES = [("subprocess", at) for at in LIVES] + [("async_subprocess", at) for at in (4, 6)]


@both_containers
@pytest.mark.parametrize(("backend", "fails_at"), FAILURES)
@pytest.mark.usefixtures("_quiet")
def test_the_open_episode_of_a_failed_environment_is_dropped(backend, fails_at, container):
    with failing(backend, fails_at) as env:
        collector = make_collector(env, container=container)
        lengths, broken = [], 0
        step = env.step

        def spying(act, env_ids=None):
            nonlocal broken
            answer = step(act, env_ids)
            broken += answer.broken is not None
            return answer

        env.step = spying
        while broken < 3:
            lengths += collector.collect(n_step=2).lengths
    batch, _ = collector.buffer.rollout(FIELDS)
    check_first(batch)
    assert len(collector.buffer) == batch.mask.sum()
    found = check_true(rows_of(batch, 1), 1, Pattern((3, 5, 1)))
    life = Pattern(LIVES[fails_at]).rows(sum(LIVES[fails_at])) if LIVES[fails_at] else []
    whole = 3 * life
    assert found[: len(whole)] == whole
    # and what the last one has done since
    assert found[len(whole) :] == Pattern((3, 5, 1)).rows(len(found) - len(whole))
    other = rows_of(batch, 0)
    check_true(other, 0, Pattern((4,), (True,)))
    over = (other.terminated | other.truncated).sum()
    ends = [step for episode, step in found if step == Pattern((3, 5, 1)).length(episode)]
    assert sorted(length for length in lengths if length != 4) == sorted(ends)
    # An asynchronous environment may overwrite its rows while the other one is restarted.
    is_full = len(other) == 10_000
    assert lengths.count(4) >= over if is_full else lengths.count(4) == over


@pytest.mark.parametrize("failure", ["kill", "hang"])
@pytest.mark.usefixtures("_quiet")
def test_it_does_not_matter_how_an_environment_fails(failure):
    with failing("subprocess", 6, failure, timeout=0.5) as env:
        collector = make_collector(env, Remembering(env))
        collected = collector.collect(n_step=24)
        assert env.restarts >= 1
    rows = collector.buffer.sample(0)[0]
    assert len(rows_of(collector.buffer.rollout()[0], 1).rew) < 12
    np.testing.assert_array_equal(rows.policy.steps, rows.obs[:, 2])
    assert all(r == n * (n + 1) / 2 for n, r in reported(collected))


@pytest.mark.usefixtures("_quiet")
def test_an_environment_that_fails_still_brings_its_share_of_episodes():
    with failing("subprocess", 6) as env:
        collected = make_collector(env).collect(n_episode=6)
    # It never gets beyond its first episode.
    assert reported(collected) == [(3, 6.0)] * 3 + [(4, 10.0)] * 3


@both_containers
@pytest.mark.parametrize("backend", ["subprocess", "async_subprocess"])
@pytest.mark.usefixtures("_quiet")
def test_an_episode_that_was_broken_off_before_is_not_the_one_that_is_dropped(backend, container):
    with backend_vector(backend, [Pattern((5,))], [{"fails_at": 3}], max_restarts=9) as env:
        collector = make_collector(env, container=container)
        collector.collect(n_step=2)
        collector.break_off()
        collector.collect(n_step=1)  # it fails at once, and is restarted
        assert env.restarts == 1
    batch, _ = collector.buffer.rollout(FIELDS)
    check_first(batch)
    assert check_true(rows_of(batch, 0), 0, Pattern((5,))) == [(0, 1), (0, 2), (0, 1)]


@both_containers
@pytest.mark.usefixtures("_quiet")
def test_a_failure_after_the_buffer_was_emptied_drops_what_is_left_of_the_episode(container):
    with backend_vector("subprocess", [Pattern((9,))], [{"fails_at": 6}], max_restarts=9) as env:
        collector = make_collector(env, container=container)
        collector.collect(n_step=3)
        collector.buffer.reset()
        collected = collector.collect(n_step=4)
        assert env.restarts == 1
    batch, _ = collector.buffer.rollout(FIELDS)
    check_first(batch)
    assert check_true(rows_of(batch, 0), 0, Pattern((9,))) == [(0, 1), (0, 2)]
    assert collected.n_step == 4  # these steps were taken, whatever became of them


@pytest.mark.parametrize(
    ("amounts", "steps"),
    # It fails at every sixth step, in the middle of its second episode, which begins with row 4.
    [
        ([5, 1], [[0, 1, 2, 0, 1], [0]]),  # the episode began in the call before
        ([3, 3], [[0, 1, 2], [0]]),  # in the same call
        ([4, 2, 6], [[0, 1, 2, 0], [0], [1, 2, 0, 1]]),
        ([12], [[0, 1, 2, 0, 1, 2, 0, 1]]),
    ],
)
@both_containers
@pytest.mark.usefixtures("_quiet")
def test_annotations_start_anew_after_an_episode_that_was_lost(container, amounts, steps):
    own, model = [{"fails_at": 6}], StepCount({})
    with backend_vector("subprocess", [Pattern((3, 5, 1))], own, max_restarts=9) as env:
        collector = make_collector(env, container=container, reward=make_reward(model))
        found = []
        for amount in amounts:
            collector.collect(n_step=amount)
            fresh, _ = collector.fresh(("obs", "annotations"))
            check_first(fresh)
            found.append(fresh.annotations.stepcount.step[fresh.mask].tolist())
            np.testing.assert_array_equal(found[-1], fresh.obs[fresh.mask][:, 2])
            if container is Rollout:
                collector.buffer.reset()
        assert env.restarts >= 1
    assert found == steps


# --- annotations


class StepCount(EpisodeRewardModel):
    """The number of transitions before each one in its episode."""

    reads = ("obs",)
    annotations = ("step",)

    def new_memory(self, n_envs):
        return np.zeros(n_envs, np.int64)

    def annotate(self, batch, memory):
        steps = np.zeros(batch.mask.shape, np.int64)
        for t, real in enumerate(batch.mask):
            memory = np.where(batch.first[t], 0, memory)
            steps[t] = memory
            memory = memory + real
        return {"step": steps}, memory

    def score(self, batch):
        return batch.step


@both_containers
@every_kind
def test_annotations_follow_episodes_from_call_to_call(vectors, kind, container):
    reward = make_reward(StepCount({}))
    collector = make_collector(vectors(kind), container=container, reward=reward)
    for amount in ({"n_step": 13}, {"n_step": 8}, {"n_episode": 7}, {"n_step": 4}, {"n_step": 20}):
        collector.collect(**amount)
        batch, rows = collector.buffer.rollout(("obs", "rew", "annotations"))
        real = batch.mask
        np.testing.assert_array_equal(batch.annotations.stepcount.step[real], batch.obs[real][:, 2])
        read = reward.transform(batch, rows, collector.buffer).to_device(torch.device("cpu"))
        np.testing.assert_array_equal(reward.resolve(read).rew[real], batch.obs[real][:, 2])
        if container is Rollout:
            collector.buffer.reset()
        elif amount == {"n_step": 8}:
            collector.break_off()


# --- being watched


@pytest.mark.parametrize("kind", [*AutoresetMode, "base"])
@pytest.mark.parametrize("amount", [{"n_step": 30}, {"n_episode": 5}])
def test_whoever_watches_sees_exactly_what_is_stored(kind, amount):
    make = backend_vector if kind == "base" else modes_vector
    seen = []

    def watch(rows, step, dummy):
        real = np.ones(3, bool) if dummy is None else ~dummy
        values = {"obs": rows["obs"], "act": rows["act"], "rew": step.rew}
        values |= {"terminated": step.terminated, "obs_next": step.obs_next}
        seen.append(Batch(values)[real])

    collector = make_collector(make(kind, MIXED), watch=watch)
    collected = collector.collect(**amount)
    stored = collector.buffer.sample(0)[0]
    watched = Batch.cat(seen)
    assert len(watched) == collected.n_step == len(stored)
    order = [np.lexsort(rows.obs.T) for rows in (watched, stored)]
    for name, values in watched.items():
        np.testing.assert_array_equal(values[order[0]], stored[name][order[1]])


# --- making one, and going on with it


def test_a_collector_goes_on_where_its_state_was_taken():
    def starts(collector, number):
        seeds = []
        reset = collector.env.reset
        collector.env.reset = lambda seed: seeds.append(seed) or reset(seed)
        for _ in range(number):
            collector.collect(n_episode=1)
        del collector.env.reset
        return seeds

    env = backend_vector("base", MIXED)
    first = make_collector(env, seed=7)
    whole = starts(make_collector(env, seed=7), 5)
    assert len(set(whole)) == 5
    assert starts(first, 2) == whole[:2]
    second = make_collector(env, seed=8)
    second.load_training_state(first.training_state())
    assert starts(second, 3) == whole[2:]


def test_collect_wants_steps_or_episodes():
    collector = make_collector(backend_vector("base", MIXED))
    with pytest.raises(ValueError, match="either n_step or n_episode"):
        collector.collect()
    with pytest.raises(ValueError, match="either n_step or n_episode"):
        collector.collect(n_step=1, n_episode=1)


def test_a_buffer_for_another_number_of_environments_is_refused():
    env = backend_vector("base", MIXED)
    with pytest.raises(ValueError, match="make it with n_envs=3"):
        Collector(Tracing(env), env, ReplayBuffer(10, 2))


def test_a_collector_without_a_buffer_has_nothing_fresh():
    env = backend_vector("base", MIXED)
    collector = Collector(Tracing(env), env)
    collector.collect(n_step=3)
    with pytest.raises(ValueError, match="no buffer"):
        collector.fresh(("obs",))


@pytest.mark.parametrize("amount", [{"n_step": 0}, {"n_step": -5}, {"n_episode": -1}])
def test_less_than_one_is_refused(amount):
    with make_vec("CartPole-v1", 2) as env, pytest.raises(ValueError, match="has to be 1 or more"):
        Collector(None, env).collect(**amount, random=True)


def test_a_single_environment_is_refused_in_a_sentence():
    with pytest.raises(
        TypeError, match="a collector needs a vector environment, not a single TimeLimit: make"
    ):
        Collector(None, gymnasium.make("CartPole-v1"))
