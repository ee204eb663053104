"""`CommonPolicy`: policies written as in the nerveX tutorial, in guerdon's loop."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import ConfigDict, Field, field_validator
from torch import Tensor, nn

from guerdon.compat.nervex.armor import Armor
from guerdon.compat.nervex.armor_plugins import Sampler
from guerdon.compat.nervex.common_hooks import CommonHooks
from guerdon.compat.nervex.samples import (
    Timestep,
    Transition,
    Watched,
    all_samples,
    collate,
    row,
    stack,
    trajectories,
)
from guerdon.config.attr_dict import AttrDict
from guerdon.data import MixedReplay, PrioritizedReplayBuffer
from guerdon.data.batch import Batch, from_leaves
from guerdon.data.leaves import to_numpy
from guerdon.nn import seeded
from guerdon.nn.optimizer import Optimizer
from guerdon.nn.registry import find_model
from guerdon.policy.base import Metrics, Policy, PolicyConfig, Resolver
from guerdon.policy.bounds import Bounds

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator, Mapping

    from guerdon.data import ReplayBuffer, Rollout

_TRIES = 10  # draws for a batch of samples, of which each may give fewer than it should
_PARTS = ("learn", "collect", "eval")


class CommonConfig(PolicyConfig):
    """Options of a policy in the tutorial's style: these, and whatever its class reads."""

    model_config = ConfigDict(extra="allow")

    model: dict[str, Any] = Field(default={})  # type: ignore[assignment]
    """Arguments of the network."""
    anneal: Literal[False] = False
    """Not for these policies: a learning rate can be changed in ``_get_setting_learn``."""
    prioritized: bool = False
    """Whether surprising samples are read more often; `_forward_learn` returns ``priority``."""
    alpha: float = Field(default=0.6, ge=0, le=1)
    """How much more often, if prioritized: 0 is not at all."""
    beta: float = Field(default=0.4, ge=0, le=1)
    """How much of the bias weights undo at the start, if prioritized; 1 is reached at the end."""

    @field_validator("model", mode="before")
    @classmethod
    def _over_its_defaults(cls, given: Any) -> Any:
        return given  # arguments of any network, which has defaults of its own


class CommonPolicy(CommonHooks, Policy):
    """A policy in four parts, learn, collect, eval and command, as in the nerveX tutorial.

    A class has to define `_forward_learn`, and may define the other methods of `CommonHooks`. It
    finds its config as `_cfg`, its network as `_model`, and what `_get_setting_collect` returns as
    attributes: ``eps`` as `_eps`.

    The buffer holds what the environment said. `_process_transition` and `_get_train_sample` are
    called when that is read, with the reward as it is then: nothing that they compute is stored.

    Off-policy, every drawn transition is the beginning of a segment, and gives one sample: the
    first of those that `_get_train_sample` returns for it. With ``on_policy = True``, it is called
    with each piece of an episode that was collected, until it takes no more from it, and all
    samples count.

    ``done`` means terminated. Discrete actions count from 0, those of a bounded Box lie in [-1, 1].
    """

    Config: ClassVar[type[PolicyConfig]] = CommonConfig
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "collect": {"n_step": 8, "buffer_size": 20_000},
        "learn": {"batch_size": 64, "updates_per_collect": 3},
    }
    target_name = "_get_train_sample"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cfg = AttrDict(self.config.model_dump())
        for part in (*_PARTS, "command"):
            self._cfg.setdefault(part, AttrDict())
        self._batch_size: int | None = self._cfg.learn.get("batch_size")
        self._use_cuda = self.device.type == "cuda"
        self._kept: tuple[str, ...] | None = None  # outputs to store; known after the first
        space = self.action_space
        self._start = int(space.start) if isinstance(space, spaces.Discrete) else 0
        bounded = isinstance(space, spaces.Box) and space.is_bounded()
        self._bounds = Bounds(space, type(self).__name__, self.device) if bounded else None
        for part in _PARTS:
            setattr(self, f"_{part}_setting_set", set())
        with seeded(self.seed):
            self._model = self._make_model().to(self.device)
            self._init_learn()
            self._init_collect()
            self._init_eval()
            self._init_command()
        for name, value in vars(self).items():
            if isinstance(value, Optimizer | torch.optim.Optimizer):
                self.optimizers[name] = value  # type: ignore[assignment]
        self._share_generator()
        self.advance(0, 0.0)

    def _make_model(self) -> nn.Module:
        custom = self.custom_model
        if isinstance(custom, nn.Module):
            return custom
        return self._create_model_from_cfg(
            self._cfg, find_model(custom) if isinstance(custom, str) else custom
        )

    def _share_generator(self) -> None:
        """Lets plugins draw from the policy's generator, which is seeded and saved with the run."""
        for armor in self.modules():
            if isinstance(armor, Armor):
                for plugin in armor.plugins():
                    if isinstance(plugin, Sampler) and plugin.given is None:
                        plugin.given = self.generator

    # --- acting

    def forward(self, batch: Batch, state: Any = None) -> Batch:
        """Acts; the state only tells where episodes begin."""
        collecting = self.explores
        obs = self.observation(batch.obs)
        rows = np.asarray(batch.get("env_ids", range(len(batch.obs)))).tolist()
        reset = self._reset_collect if collecting else self._reset_eval
        if state is None:
            reset()
        elif len(begun := torch.nonzero(state == 0)):
            reset(data_id=[rows[row] for row in begun.flatten().tolist()])
        forward = self._forward_collect if collecting else self._forward_eval
        output = forward(rows, {"obs": obs})
        acted = Batch(act=self._to_env(output["action"]), state=torch.ones(len(rows)))
        if collecting:
            if self._kept is None:
                self._kept = self._find_kept(obs, output)
            if self._kept:
                acted.policy = Batch(**{key: _array(output[key]) for key in self._kept})
        return acted

    def random_output(self, batch: Batch, act: np.ndarray, state: Any = None) -> Batch:
        """What `forward` returns, with other actions: rows of a warm-up need the same outputs."""
        acted = self(batch, state)
        acted.act = act
        return acted  # type: ignore[no-any-return]

    def _find_kept(self, obs: Any, output: Mapping[str, Any]) -> tuple[str, ...]:
        """What `_process_transition` reads of an output, which is found out by calling it once."""
        first = row(obs, 0)
        watched = Watched({key: row(value, 0) for key, value in output.items()})
        self._process_transition(
            first, watched, Timestep(first, torch.tensor(0.0), torch.tensor(False), {})
        )
        return tuple(key for key in output if key in watched.read and key != "action")

    def _to_env(self, action: Any) -> np.ndarray:
        if self._bounds is not None:
            return self._bounds.to_env(torch.as_tensor(action))
        act: np.ndarray = _array(action)
        return act + self._start if self._start else act

    def _from_env(self, act: Any) -> Tensor:
        action = self.tensor(act)
        return self._bounds.to_unit(action) if self._bounds is not None else action - self._start

    def advance(self, env_steps: int, progress: float) -> None:
        """Lets the command part give the other parts their settings."""
        self._command({"learner_step": self.updates, "env_step": env_steps, "progress": progress})

    def _command(self, info: dict[str, Any]) -> None:
        self._command_info = info
        for part in _PARTS:
            known = getattr(self, f"_{part}_setting_set")
            for name, value in getattr(self, f"_get_setting_{part}")(info).items():
                if name not in known:
                    raise ValueError(
                        f"_get_setting_{part} returned {name!r}, which is not in "
                        f"_{part}_setting_set ({', '.join(sorted(known)) or 'empty'}): add it there"
                    )
                setattr(self, f"_{name}", value)
        self._beta = self.config.beta + (1 - self.config.beta) * min(info["progress"], 1.0)

    # --- learning

    def make_buffer(
        self, size: int, n_envs: int, seed: int, history: int = 0
    ) -> ReplayBuffer | Rollout:
        """See `Policy`; a prioritized one, if that is wanted."""
        if not self.config.prioritized:
            return super().make_buffer(size, n_envs, seed, history)
        config = self.config
        return PrioritizedReplayBuffer(size, config.alpha, config.beta, n_envs=n_envs, seed=seed)

    def update(
        self,
        batch_size: int,
        source: ReplayBuffer | Rollout,
        reward: Resolver | None = None,
        **options: Any,
    ) -> Metrics:
        """See `Policy`; ``_cfg.learn.batch_size`` is what it is called with."""
        if self._batch_size not in (None, batch_size):
            raise ValueError(
                f"'policy.learn.batch_size' is {self._batch_size}, but 'learn.batch_size' is "
                f"{batch_size}: give both the same value, or leave out the first"
            )
        self._cfg.learn.batch_size = batch_size
        return super().update(batch_size, source, reward, **options)

    def read(
        self, batch_size: int, source: Any, fields: tuple[str, ...]
    ) -> tuple[Batch, np.ndarray]:
        """The whole rollout; or a segment for every sample."""
        fields = (*fields, "policy") if self._kept else fields
        if isinstance(source, PrioritizedReplayBuffer | MixedReplay):
            source.set_beta(self._beta)
        self.segment_length = self._get_segment_len()
        return super().read(batch_size, source, fields)

    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:
        """The list ``samples``; off-policy the ``row`` where each begins, and its ``weight``."""
        if self.on_policy:
            samples: list[Any] = []
            for _, cache in self._trajectories(batch):
                samples.extend(all_samples(cache, self._get_train_sample))
            return from_leaves({"samples": samples})
        number = indices.shape[-1]
        found = list(self._first_samples(batch, indices))
        for _ in range(_TRIES):
            if len(found) >= number:
                break
            # Segments that end too early give no sample; others take their place.
            found += self._first_samples(*self.read(number, buffer, self.fields))
        if not found:
            self._check_patience(buffer)
            return from_leaves({"samples": []})
        found = [found[i % len(found)] for i in range(number)]
        samples, rows, weights = map(list, zip(*found, strict=True))
        leaves = {"samples": samples, "row": np.array(rows)}
        if "weight" in batch:
            leaves["weight"] = self.tensor(np.array(weights, np.float32))
        return from_leaves(leaves)

    def _check_patience(self, buffer: Any) -> None:
        """No samples are fine while there are few transitions."""
        length = self._get_segment_len()
        if len(buffer) >= 2 * length * buffer.n_envs:
            raise ValueError(
                f"_get_train_sample of {type(self).__name__} makes no sample of {length} "
                f"transitions in a row: set _collect_nstep and _unroll_len in _init_collect, or "
                f"define _get_segment_len, so that segments are long enough"
            )

    def _first_samples(self, batch: Batch, indices: np.ndarray) -> Iterator[tuple[Any, int, float]]:
        """The first sample of each segment that has one, where it begins, and its weight."""
        rows = indices.reshape(-1, indices.shape[-1])[0]
        weights = to_numpy(batch.weight) if "weight" in batch else np.ones(len(rows))
        for b, cache in self._trajectories(batch):
            for sample in (self._get_train_sample(cache) or [])[:1]:
                yield sample, int(rows[b]), float(weights[b])

    def _trajectories(self, batch: Batch) -> Iterator[tuple[int, deque[Transition]]]:
        """The transitions of a batch [B] or [T, B], as `samples.trajectories` gives them."""
        kept = {key: self.observation(batch.policy[key]) for key in self._kept or ()}
        table = {
            "obs": self.observation(batch.obs),
            "next_obs": self.observation(batch.obs_next),
            "reward": self.tensor(batch.rew),
            "done": self.tensor(batch.terminated),
            "output": {"action": self._from_env(batch.act), **kept},
        }
        if batch.rew.ndim == 1:
            table = stack([table])
        shape = table["reward"].shape
        mask = to_numpy(batch.mask) if "mask" in batch else np.ones(shape, bool)
        cut = to_numpy(batch.cut) if "cut" in batch else np.zeros(shape, bool)
        return trajectories(table, mask, cut, self._process_transition)

    def learn(self, batch: Batch, *, batch_size: int = 64, repeat: int = 1, **_: Any) -> Metrics:
        """Calls `_forward_learn` with all samples; on-policy with minibatches, `repeat` times."""
        samples: list[Any] = batch.samples
        learned: dict[str, Any] = {}
        if not samples:
            return learned
        if not self.on_policy:
            learned = self._forward_learn({**collate(samples), "weight": batch.get("weight")})
            batch.priority = learned.pop("priority", None)
        else:
            n_parts = max(1, round(len(samples) / batch_size))
            for _epoch in range(repeat):
                order = torch.randperm(len(samples), generator=self.generator, device=self.device)
                for part in order.tensor_split(n_parts):
                    data = collate([samples[i] for i in part.tolist()])
                    learned = self._forward_learn({**data, "weight": None})
        return {f"train/{key}": value for key, value in learned.items() if _is_number(value)}

    def post_process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> None:  # noqa: ARG002
        """New priorities, where there are any."""
        prioritized = isinstance(buffer, PrioritizedReplayBuffer | MixedReplay)
        if prioritized and batch.get("priority") is not None:
            buffer.update_weight(batch.row, batch.priority)

    # --- files

    def training_state(self) -> dict[str, Any]:
        """See `Policy`; and what the settings were computed from."""
        state = super().training_state() | {"command_info": self._command_info}
        state["optimizers"] = copy.deepcopy(state["optimizers"])  # torch's give no copies
        return state

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where `training_state` was taken."""
        super().load_training_state(state)
        self._command(state["command_info"])


def _array(value: Any) -> Any:
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "numel") and value.numel() == 1)
