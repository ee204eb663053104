"""Collecting in shards: what they collect arrives whole and in order."""

import numpy as np
import pytest
import torch

from guerdon.config import compose
from guerdon.training.parts import make_parts

N_ENVS, SHARDS = 6, 3


def parts_of(policy="ppo", settings=None, **env):
    settings = settings or [{"number": i, "lengths": [2 + i, 3]} for i in range(N_ENVS)]
    return make_parts(
        compose(
            {
                "env": {
                    "id": "guerdon.envs.counting:Counting", "n_envs": N_ENVS, "settings": settings,
                    "eval": {"settings": []}, **env,
                },
                "policy": {"type": policy, "model": {"hidden": [4]}},
                "collect": {"n_step": 30, "shards": SHARDS, **(
                    {} if policy == "ppo" else {"buffer_size": 600, "warmup_steps": 16}
                )},
                "learn": {"batch_size": 16},
                "eval": {"episodes": 1},
            }
        )
    )  # fmt: skip


def rows_of(parts):
    """Transitions of each environment in time order, and the number of its environment."""
    batch, _ = parts.buffer.rollout()
    for env in range(N_ENVS):
        rows = batch[batch.mask[:, env], env]
        assert set(rows.obs[:, 0].tolist()) <= {env}
        yield rows


def assert_consecutive(rows):
    """Every row follows the one before it, or begins an episode; rewards are those of steps."""
    assert (rows.obs_next[:, 2] == rows.obs[:, 2] + 1).all()
    assert (rows.rew == rows.obs_next[:, 2]).all()
    done = rows.terminated | rows.truncated
    assert (rows.obs[1:][done[:-1], 2] == 0).all()
    assert (rows.obs[1:][~done[:-1]] == rows.obs_next[:-1][~done[:-1]]).all()


@pytest.mark.parametrize("policy", ["ppo", "dqn"])
def test_rows_of_all_shards_are_in_their_environments_and_in_order(policy):
    parts = parts_of(policy)
    collected = [parts.collector.collect(n_step=30) for _ in range(3)]
    if policy == "ppo":  # a rollout of several collects
        assert [each.n_step for each in collected] == [30, 30, 30]
    rows = list(rows_of(parts))
    for each in rows:
        assert len(each.obs) == 15
        assert_consecutive(each)
    ends = sum(int((each.terminated | each.truncated).sum()) for each in rows)
    assert ends == sum(each.n_episode for each in collected)
    returns = sorted(value for each in collected for value in each.returns)
    assert returns == sorted(
        float(n * (n + 1) / 2)
        for each in rows
        for n in each.obs_next[each.terminated | each.truncated, 2]
    )
    parts.close()


def test_episodes_are_divided_among_the_shards():
    parts = parts_of()
    collected = parts.collector.collect(n_episode=8)
    assert collected.n_episode == 8
    ends = [int((each.terminated | each.truncated).sum()) for each in rows_of(parts)]
    assert [sum(ends[i : i + 2]) for i in (0, 2, 4)] == [3, 3, 2]
    parts.close()


def test_break_off_resets_all_environments():
    parts = parts_of()
    parts.collector.collect(n_step=6)
    parts.collector.break_off()
    parts.buffer.reset()
    parts.collector.collect(n_step=6)
    assert all((rows.obs[0, 1:] == 0).all() for rows in rows_of(parts))
    parts.close()


def test_shards_act_with_the_newest_weights_and_their_own_noise():
    parts = parts_of()
    acts = []
    for bias in (50.0, -50.0):
        with torch.no_grad():
            parts.policy.model.head.linear.bias.zero_()
            parts.policy.model.head.linear.bias[0] = bias
        parts.collector.collect(n_step=30)
        acts.append(np.concatenate([rows.act for rows in rows_of(parts)]))
        parts.buffer.reset()
    assert (acts[0] == 0).all()
    assert (acts[1] != 0).all()
    by_shard = np.split(acts[1], SHARDS)
    assert not any(np.array_equal(by_shard[0], other) for other in by_shard[1:])
    parts.close()


@pytest.mark.parametrize("policy", ["ppo", "dqn"])
def test_the_episode_of_an_environment_that_is_restarted_is_dropped(policy):
    """Also its rows of earlier rollouts, which a replay buffer has already."""
    settings = [{"number": i, "lengths": [100]} for i in range(N_ENVS)]
    settings[3] |= {"fails_at": 8, "failure": "raise"}
    parts = parts_of(policy, settings, backend="subprocess", max_restarts=1)
    for _ in range(2):
        parts.collector.collect(n_step=30)  # five steps of each environment
    rows = list(rows_of(parts))
    lengths = [len(each.obs) for each in rows]
    assert [lengths[i] for i in (0, 1, 4, 5)] == [10] * 4
    assert lengths[2] >= 10  # of the same shard, which makes up for a lost step
    assert 0 < lengths[3] <= 3  # of the new episode alone
    for each in rows:
        assert_consecutive(each)
    assert rows[3].obs[0, 2] == 0
    assert len(parts.buffer) == sum(lengths)
    parts.close()


def test_the_state_of_shards_continues_their_random_numbers():
    first, other = parts_of(), parts_of()
    first.collector.collect(n_step=30)
    first.clean_point()
    state = first.training_state()
    first.buffer.reset()
    first.collector.collect(n_step=30)
    other.load_training_state(state)
    other.collector.collect(n_step=30)
    for one, same in zip(rows_of(first), rows_of(other), strict=True):
        assert (one.act == same.act).all()
    for each in (first, other):
        each.close()
