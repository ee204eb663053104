"""The loops, used by hand: no run folder, no config."""

import numpy as np
import pytest

from guerdon.collect import Collector
from guerdon.data import Batch
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.reward import create_reward_model, make_reward
from guerdon.training.evaluation import evaluate
from guerdon.training.monitor import Budget, Monitor
from guerdon.training.trainers import offpolicy_trainer, onpolicy_trainer


def made(name, env_id, n_envs=4, seed=0, **options):
    env = make_vec(env_id, n_envs)
    config = {"type": name, "model": {"hidden": [16]}, **options}
    policy = create_policy(config, env.observation_space, env.action_space, seed=seed)
    size = 0 if policy.on_policy else 5_000
    return policy, Collector(policy, env, policy.make_buffer(size, n_envs, seed), seed=seed)


class Counted:
    """Notes how often a policy was updated, and on how many rows."""

    def __init__(self, policy, collector):
        self.sizes = []
        self.moments = []
        update = policy.update

        def counted(batch_size, buffer, reward=None, **options):
            self.sizes.append(len(buffer))
            self.options = options
            return update(batch_size, buffer, reward, **options)

        policy.update = counted
        advance = policy.advance
        policy.advance = lambda *args: self.moments.append(args) or advance(*args)
        self.calls = []
        collect = collector.collect
        collector.collect = lambda **call: self.calls.append(call) or collect(**call)


def test_an_on_policy_trainer_learns_from_what_is_new_and_forgets_it():
    policy, collector = made("ppo", "guerdon/Identity-v0")
    counted = Counted(policy, collector)
    monitor = onpolicy_trainer(policy, collector, n_step=40, batch_size=16, repeat=3, max_steps=100)
    assert counted.sizes == [40, 40, 40]
    assert counted.options == {"repeat": 3}
    assert len(collector.buffer) == 0
    progress = monitor.progress
    assert (progress.env_steps, progress.updates) == (120, 3)
    assert monitor.stop_reason() == "max_steps"
    assert [steps for steps, _ in counted.moments] == [0, 40, 80]
    assert [fraction for _, fraction in counted.moments] == [0.0, 0.4, 0.8]


def test_an_off_policy_trainer_keeps_what_it_collects():
    policy, collector = made("dqn", "guerdon/Identity-v0")
    counted = Counted(policy, collector)
    monitor = offpolicy_trainer(
        policy, collector, n_step=20, batch_size=16, updates_per_collect=2, warmup_steps=50,
        max_steps=120,
    )  # fmt: skip
    # Random until 50 steps are done, that is for three rounds; then two updates a round.
    assert [call["random"] for call in counted.calls] == [True] * 3 + [False] * 3
    assert counted.sizes == [80, 80, 100, 100, 120, 120]
    assert len(collector.buffer) == 120
    assert (monitor.progress.env_steps, monitor.progress.updates) == (120, 6)
    assert policy.updates == 6


def test_without_a_warm_up_learning_starts_at_once():
    policy, collector = made("sac", "guerdon/Target-v0")
    monitor = offpolicy_trainer(policy, collector, n_step=20, batch_size=16, max_steps=20)
    assert monitor.progress.updates == 1
    assert not np.isnan(collector.buffer.sample(0)[0].rew).any()


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_an_on_policy_trainer_collects_episodes(name):
    policy, collector = made(name, "guerdon/Identity-v0")
    counted = Counted(policy, collector)
    monitor = onpolicy_trainer(policy, collector, n_episode=6, batch_size=16, max_steps=150)
    # Episodes have 10 steps.
    assert counted.sizes == [60, 60, 60]
    assert monitor.progress.episodes == 18


@pytest.mark.parametrize(
    ("name", "env_id"), [("dqn", "guerdon/Identity-v0"), ("td3", "guerdon/Target-v0")]
)
def test_an_off_policy_trainer_collects_episodes(name, env_id):
    policy, collector = made(name, env_id)
    counted = Counted(policy, collector)
    monitor = offpolicy_trainer(
        policy, collector, n_episode=2, batch_size=8, warmup_steps=20, max_steps=80
    )
    assert counted.sizes == [40, 60, 80]
    assert monitor.progress.episodes == 8


def test_native_environments_collect_episodes_too():
    policy, collector = made("ppo", "CartPole-v1")
    monitor = onpolicy_trainer(policy, collector, n_episode=7, batch_size=16, max_steps=50)
    assert monitor.progress.episodes == 7
    assert monitor.progress.updates == 1


def test_an_on_policy_trainer_learns():
    policy, collector = made("a2c", "guerdon/Identity-v0", 8, gamma=0.5, learning_rate=3e-3)
    onpolicy_trainer(policy, collector, n_step=80, batch_size=40, max_steps=6_000)
    assert np.mean(evaluate(policy, collector.env, 16, seed=9).returns) > 8.5  # 2.5 at random


def test_an_off_policy_trainer_learns():
    epsilon = {"start": 1.0, "end": 0.05, "decay": 600}
    options = {"gamma": 0.5, "learning_rate": 3e-3, "epsilon": epsilon, "target_update_every": 20}
    policy, collector = made("dqn", "guerdon/Identity-v0", 8, **options)
    offpolicy_trainer(
        policy, collector, n_step=16, batch_size=64, updates_per_collect=6, warmup_steps=160,
        max_steps=1_600,
    )  # fmt: skip
    assert np.mean(evaluate(policy, collector.env, 16, seed=9).returns) > 8.5


def test_a_reward_that_learns_is_shown_what_is_new_before_the_policy_learns():
    policy, collector = made("ppo", "guerdon/Identity-v0")
    reward = make_reward({"type": "env", "normalize": True})
    order = []
    for name in ("collect_data", "train", "clear_data", "resolve"):
        method = getattr(reward, name)

        def noted(*args, method=method, name=name):
            order.append((name, int(args[0].mask.sum()) if name == "collect_data" else None))
            return method(*args)

        setattr(reward, name, noted)
    onpolicy_trainer(policy, collector, reward=reward, n_step=40, batch_size=40, max_steps=80)
    once = [("collect_data", 40), ("train", None), ("clear_data", None), ("resolve", None)]
    assert order == once * 2


def test_off_policy_a_reward_that_learns_sees_every_transition_once():
    policy, collector = made("dqn", "CartPole-v1")
    rule = {"type": "function", "target": lambda data: data.rew, "fields": ("obs",)}
    reward = make_reward({**rule, "normalize": True})
    seen = []
    reward.collect_data = lambda data, *_: seen.append(data.obs[data.mask].copy())
    offpolicy_trainer(
        policy, collector, reward=reward, n_step=24, batch_size=8, warmup_steps=48, max_steps=200
    )
    rows = np.concatenate(seen)
    stored, _ = collector.buffer.sample(0)
    assert len(rows) == len(collector.buffer)
    order = np.lexsort
    np.testing.assert_array_equal(rows[order(rows.T)], stored.obs[order(stored.obs.T)])


def test_a_reward_that_does_not_learn_is_not_asked_to():
    policy, collector = made("ppo", "guerdon/Identity-v0")
    reward = make_reward({"type": "constant", "value": 2.0})
    reward.collect_data = None
    resolved = []
    resolve = reward.resolve
    reward.resolve = lambda *read: resolved.append(resolve(*read)) or resolved[-1]
    monitor = onpolicy_trainer(policy, collector, reward=reward, n_step=40, max_steps=40)
    (batch,) = resolved
    assert isinstance(batch, Batch)
    assert (np.asarray(batch.rew) == 2.0).all()
    assert set(np.unique(batch.rew_env)) <= {0.0, 1.0}
    assert monitor.progress.updates == 1


@pytest.mark.parametrize("trainer", [onpolicy_trainer, offpolicy_trainer])
def test_what_the_learner_saw_is_logged_if_it_is_not_what_the_environment_paid(trainer):
    lines = []
    for section in ({"type": "constant", "value": 2.0}, {"type": "env", "scale": 2.0}):
        policy, collector = made("ppo" if trainer is onpolicy_trainer else "dqn", "CartPole-v1")
        monitor = Monitor(
            Budget(max_steps=80), log=lambda _, line: lines.append(line), log_every=80
        )
        trainer(
            policy, collector, reward=make_reward(section), n_step=80, batch_size=8, monitor=monitor
        )
    learned, plain = lines
    assert (learned["reward/mean"], learned["reward/std"]) == (2.0, 0.0)
    assert not any(name.startswith("reward/") for name in plain)


@pytest.mark.parametrize("trainer", [onpolicy_trainer, offpolicy_trainer])
def test_a_monitor_decides_when_it_is_there(trainer):
    name = "ppo" if trainer is onpolicy_trainer else "dqn"
    policy, collector = made(name, "guerdon/Identity-v0")
    lines = []
    monitor = Monitor(
        Budget(max_updates=4), log=lambda step, line: lines.append((step, line)), log_every=40
    )
    given = trainer(policy, collector, n_step=20, batch_size=8, max_steps=20, monitor=monitor)
    assert given is monitor
    assert monitor.stop_reason() == "max_updates"
    assert [step for step, _ in lines] == [40, 80]
    loss = "train/value_loss" if name == "ppo" else "train/loss"
    assert all(np.isfinite(float(line[loss])) for _, line in lines)


@pytest.mark.parametrize("trainer", [onpolicy_trainer, offpolicy_trainer])
def test_a_collector_without_a_buffer_is_refused(trainer):
    policy, collector = made("ppo", "guerdon/Identity-v0")
    with pytest.raises(ValueError, match="no buffer"):
        trainer(policy, Collector(policy, collector.env), n_step=8, max_steps=8)


@pytest.mark.parametrize(
    ("trainer", "name", "right"),
    [
        (onpolicy_trainer, "dqn", "offpolicy_trainer"),
        (offpolicy_trainer, "ppo", "onpolicy_trainer"),
        (onpolicy_trainer, "bc", "offline_trainer"),
    ],
)
def test_a_policy_of_the_other_kind_is_refused(trainer, name, right):
    policy, collector = made(name, "guerdon/Identity-v0")
    with pytest.raises(ValueError, match=f"is not for this trainer: use {right}"):
        trainer(policy, collector, n_step=16, max_steps=16)


@pytest.mark.parametrize(
    ("trainer", "name"), [(onpolicy_trainer, "ppo"), (offpolicy_trainer, "dqn")]
)
def test_a_training_without_an_end_is_refused(trainer, name):
    policy, collector = made(name, "guerdon/Identity-v0")
    with pytest.raises(ValueError, match="training would not end: give 'max_steps'"):
        trainer(policy, collector, n_step=16)


def test_a_model_that_was_made_by_hand_is_a_reward():
    policy, collector = made("dqn", "guerdon/Identity-v0")
    model = create_reward_model({"type": "constant"})
    collector.collect(n_step=64, random=True)
    with pytest.raises(TypeError, match=r"not a ConstantReward: make it with guerdon.reward.make_"):
        policy.update(16, collector.buffer, model)
    reward = make_reward(model)
    assert list(reward.terms) == ["constant"]
    policy.update(16, collector.buffer, reward)
