"""Updates on a GPU do not wait for it once per minibatch."""

import warnings
from contextlib import contextmanager
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from guerdon.collect import Collector
from guerdon.data import Batch, Demonstrations
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.reward import Setting, make_reward, success_classifier
from guerdon.training.replay import play_episodes
from guerdon.training.trainers import train_reward
from tests.reward.seeing import Lamp, episode, loaded, pictures, weights, write_data

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = [("ppo", "CartPole-v1", 4), ("ppo", "Pendulum-v1", 4), ("sac", "Pendulum-v1", 2)]
WAITING = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2"}
REWARDS = {
    "env": {"type": "env"},
    "gail": {"type": "gail", "train_every": 1},
    "rnd": {"type": "rnd", "warmup": 0, "train_every": 1},
}


class NoWaiting(TorchDispatchMode):
    """Refuses operations that would wait for a GPU, on tensors of the CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition(".")[0].removeprefix("aten::")
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        masks = [index for index in indices if index is not None and index.dtype == torch.bool]
        if masks or name in WAITING:
            raise RuntimeError(f"{name} would synchronize")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_waiting():
    if DEVICE == "cpu":
        refuse = Mock(side_effect=RuntimeError("would synchronize"))
        with NoWaiting(), patch.multiple(torch.Tensor, numpy=refuse, tolist=refuse):
            yield
        return
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def guarded(function):
    def call(*args, **options):
        with no_waiting():
            return function(*args, **options)

    return call


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize(("case", "env_id", "n_envs"), CASES)
def test_resolving_and_learning_never_wait_for_the_device(case, env_id, n_envs, name):
    env = make_vec(env_id, n_envs)
    spaces = env.observation_space, env.action_space
    policy = create_policy({"type": case, "model": {"hidden": [16]}}, *spaces, device=DEVICE)
    setting = Setting(
        *spaces, n_envs=n_envs, device=DEVICE, on_policy=policy.on_policy, log_prob=policy.log_prob
    )
    reward = make_reward(REWARDS[name], setting)
    if name == "gail":
        actions = np.stack([spaces[1].sample()] * 2)
        episodes = play_episodes(lambda *_: Batch(act=actions), make_vec(env_id, 2), 4, 0)
        reward.models[0].load_expert_data(Demonstrations(episodes, env_id, *spaces))
    buffer = policy.make_buffer(512, n_envs, 0)
    collector = Collector(policy, env, buffer, reward=reward)
    reward.resolve = guarded(reward.resolve)
    policy.learn = guarded(policy.learn)
    if case == "sac":  # on-policy, one wait an iteration gathers the transitions
        policy.process_fn = guarded(policy.process_fn)
    for _ in range(3):
        collector.collect(n_step=128)
        train_reward(reward, collector, policy.updates)
        metrics = policy.update(32, buffer, reward, **({"repeat": 2} if case == "ppo" else {}))
        if case == "ppo":
            buffer.reset()
    assert all(np.isfinite(float(value)) for value in metrics.values())


@pytest.mark.parametrize("mode", ["terminal", "per_step"])
def test_refitting_a_classifier_and_reading_its_rewards_never_wait(mode, tmp_path, monkeypatch):
    lamp, options = Lamp(), {"train_every": 1, "batch_size": 8, "update_per_collect": 3}
    setting = Setting(lamp.observation_space, lamp.action_space, device=DEVICE, on_policy=False)
    saved = weights(data=write_data(tmp_path), threshold=1e-6)
    model = loaded(saved, setting, reward_type="continuous", reward_mode=mode, **options)
    refit = model._start_refit()
    refit.collect_frames(Batch(base_camera=pictures(np.arange(40))), 40)
    refit.step = guarded(refit.step)
    assert np.isfinite(float(model.train()["loss"]))
    batch = episode(*range(0, 240, 20)).replace(probability=np.linspace(0, 1, 12, dtype="f"))
    batch.paid = np.arange(12) % 3 > 0
    batch = Batch.stack([batch, batch]).to_device(model.device)  # a segment
    with torch.no_grad():
        likeness = torch.sigmoid(refit.network(batch.obs_next[0].to_dict()))
    middle = float(likeness.sort().values[5:7].mean())  # no likeness itself, which rounding moves
    refit.config = refit.config.model_copy(update={"min_likeness": middle})
    paid = batch.paid if mode == "terminal" else torch.ones_like(batch.paid)
    rejected = (likeness < middle) & (paid if mode == "terminal" else batch.probability >= 0.1)
    expected = model.score(batch)
    torch.testing.assert_close(expected, batch.probability * paid * ~rejected)
    monkeypatch.setattr(success_classifier, "_chosen", lambda _: slice(None))
    torch.testing.assert_close(guarded(model.score)(batch), expected)


@pytest.mark.parametrize(
    "wait",
    [
        lambda tensor: tensor[0].item(),
        lambda tensor: bool(tensor.sum() > 1),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: tensor.nonzero(),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor.cpu().numpy(),
    ],
)
def test_the_guard_notices_waiting(wait):
    with pytest.raises(RuntimeError, match="synchroniz"), no_waiting():
        wait(torch.ones(3, device=DEVICE))
