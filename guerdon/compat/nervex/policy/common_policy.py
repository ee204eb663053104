"""`CommonPolicy`: policies written as in the nerveX tutorial."""

import copy
from collections import UserDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from guerdon.compat.nervex.adder import Adder, Transition
from guerdon.compat.nervex.armor import Armor
from guerdon.compat.nervex.armor_plugins import Plugin, Sampler
from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.compat.nervex.data import default_decollate, stacked_collate
from guerdon.compat.nervex.gym_adapter import BaseEnvTimestep
from guerdon.compat.nervex.model import ConvDiscreteNet, FCDiscreteNet
from guerdon.compat.nervex.rl_utils import GaussianNoise
from guerdon.compat.nervex.torch_utils import row, stack
from guerdon.data.batch import Batch, from_leaves
from guerdon.data.leaves import to_numpy
from guerdon.nn import MODELS, DeterministicActor, ModelConfig, QNetwork, create_model, seeded
from guerdon.policy.base import Metrics, PolicyConfig
from guerdon.policy.bounds import Bounds
from guerdon.policy.prioritized import PrioritizedConfig, PrioritizedPolicy

_TRIES = 10  # extra draws per batch, since a segment may yield no sample
_PARTS = ("learn", "collect", "eval")
_SIZES = ("obs_dim", "action_dim", "continous", "continuous")  # the spaces have them


class CommonConfig(PrioritizedConfig):
    """Options of a policy in the tutorial's style; other options are read by its class."""

    model_config = ConfigDict(extra="allow")

    model: dict[str, Any] = Field(default={})  # type: ignore[assignment]
    """Arguments of the network."""
    anneal: Literal[False] = False
    """Not available: change the learning rate in ``_get_setting_learn`` instead."""


class _Watched(UserDict[str, Any]):
    """A mapping that records which keys are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.data[key]


class Mode:
    """Methods of one part of a policy: `forward` of ``collect`` is `_forward_collect`."""

    def __init__(self, policy: "CommonPolicy", part: str) -> None:
        self._policy, self._part = policy, part

    def info(self) -> str:
        """Describe the policy."""
        return repr(self._policy)

    def __getattr__(self, name: str) -> Any:
        for known in (f"_{name}_{self._part}", f"_{name}_collect", f"_{name}"):
            if hasattr(type(self._policy), known):
                return getattr(self._policy, known)
        return getattr(self._policy, name)


def _resetting(armor: str) -> Callable[..., None]:
    """Return a method that starts episodes in some environments, or in all, of an armor."""

    def reset(self: "CommonPolicy", data_id: list[int] | None = None) -> None:
        if hasattr(self, armor):
            getattr(self, armor).reset(data_id=data_id)

    return reset


class CommonPolicy(PrioritizedPolicy):
    """A policy in four parts, learn, collect, eval and command, as in the nerveX tutorial.

    A subclass has to define `_forward_learn`, and may define the other methods from `_init_learn`
    to `_create_model_from_cfg`. `_cfg` is the config, `_model` the network, and settings of
    `_get_setting_collect` become attributes: ``eps`` is `_eps`. By default, Discrete actions are
    sampled from the network's ``logit``, and Box actions get noise.

    The buffer stores environment rewards. `_process_transition` and `_get_train_sample` are called
    on read, with the resolved reward: their results are not stored.

    Off-policy, every sampled transition starts a segment, which yields one sample: the first one of
    `_get_train_sample`. With ``on_policy = True``, this is called with each part of an episode in
    the rollout until it takes no more, and all samples are used; the config may say so instead.

    ``done`` means terminated. Discrete actions start at 0; bounded Box actions are in [-1, 1].
    """

    Config: ClassVar[type[PolicyConfig]] = CommonConfig
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "collect": {"n_step": 8, "buffer_size": 20_000},
        "learn": {"batch_size": 64, "updates_per_collect": 3},
    }
    target_name = "_get_train_sample"
    _learn_setting_set: Collection[str] = ()
    _collect_setting_set: Collection[str] = ()
    _eval_setting_set: Collection[str] = ()

    learn_mode = property(lambda self: Mode(self, "learn"))
    collect_mode = property(lambda self: Mode(self, "collect"))
    eval_mode = property(lambda self: Mode(self, "eval"))
    command_mode = property(lambda self: Mode(self, "command"))

    @classmethod
    def learns_on_policy(cls, options: Mapping[str, Any]) -> bool:
        """See `Policy`; the config takes precedence over the class."""
        return bool(options.get("on_policy", cls.on_policy))

    def build(self) -> None:
        """Make the network and the four parts."""
        super().build()
        space = self.action_space
        parts: dict[str, Any] = {part: {} for part in (*_PARTS, "command")}
        self._cfg = AttrDict(parts | self.config.model_dump())
        self.on_policy = self.learns_on_policy(self._cfg)  # type: ignore[misc]
        self._use_cuda = self.device.type == "cuda"
        self._kept: tuple[str, ...] | None = None  # outputs to store; known after the first step
        self._discrete = isinstance(space, spaces.Discrete)
        self._start = int(space.start) if self._discrete else 0
        bounded = isinstance(space, spaces.Box) and space.is_bounded()
        self._bounds = Bounds(space, type(self).__name__, self.device) if bounded else None
        self._batch_size: int | None = self._cfg.learn.get("batch_size")
        with seeded(self.seed):
            model = self.custom_model
            if not isinstance(model, nn.Module):
                kind = MODELS.get(model) if isinstance(model, str) else model
                model = self._create_model_from_cfg(self._cfg, kind)
            self._model = model.to(self.device)
            self._init_learn()
            self._init_collect()
            self._init_eval()
            self._init_command()
        for name, value in vars(self).items():
            if hasattr(value, "step") and hasattr(value, "state_dict"):
                self.optimizers[name] = value
        for plugin in self._plugins():
            if isinstance(plugin, Sampler) and plugin.generator is None:
                plugin.generator = self.generator  # which is seeded and saved with the run
        self.advance(0, 0.0)

    def _plugins(self) -> list[Plugin]:
        armors = [module for module in self.modules() if isinstance(module, Armor)]
        return [plugin for armor in armors for plugin in armor.plugins()]

    def set_setting(self, mode_name: str, setting: Mapping[str, Any]) -> None:
        """Set attributes, such as `_eps` of ``eps``, that a part (``collect``) has settings for."""
        known = getattr(self, f"_{mode_name}_setting_set")
        for name, value in setting.items():
            if name not in known:
                raise ValueError(
                    f"{name!r} is not in _{mode_name}_setting_set "
                    f"({', '.join(sorted(known)) or 'empty'}): add it there"
                )
            setattr(self, f"_{name}", value)

    def state_dict_handle(self) -> dict[str, Any]:
        """Return the network as ``model``, and the optimizer."""
        parts = vars(self) | {"_model": self._model}
        return {name[1:]: parts[name] for name in ("_model", "_optimizer") if name in parts}

    # --- learn

    def _init_learn(self) -> None:
        """Prepare `_forward_learn`: optimizers, and armors of the network."""
        rate = self._cfg.learn.get("learning_rate", self._cfg.learning_rate)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=rate)
        self._armor = Armor(self._model)

    def _forward_learn(self, data: dict[str, Any]) -> dict[str, Any]:
        """Learn from samples; has to be defined.

        `data` has tensors [B, ...] under the keys of the samples, [T, B, ...] if unrolled, and
        ``weight``, importance weights [B] or None. Returns numbers to log; and ``priority``, one
        error per sample, if the policy is prioritized.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define _forward_learn(data)")

    def _data_preprocess_learn(self, data: list[Any]) -> dict[str, Any]:
        """Collate samples for `_forward_learn`; ``done`` is 0 or 1, ``weight`` may be ``IS``."""
        collated: dict[str, Any] = {"weight": None, **stacked_collate(data)}
        if isinstance(done := collated.get("done"), Tensor):
            collated["done"] = done.float()
        if "IS" in collated and (self.config.prioritized or self._cfg.get("use_priority")):
            collated["weight"] = collated["IS"]
        return collated

    _reset_learn = _resetting("_armor")

    # --- collect

    def _init_collect(self) -> None:
        """Prepare `_forward_collect` and `_get_train_sample`.

        `_unroll_len` and `_collect_nstep` determine the length of a segment for one sample.
        """
        collect = self._cfg.collect
        self._traj_len = collect.get("traj_len", "inf")
        self._unroll_len = collect.get("unroll_len", 1)
        self._collect_nstep = collect.get("algo", {}).get("nstep", 1)
        self._adder = Adder(self._use_cuda, self._unroll_len)
        self._collect_armor = Armor(self._model)
        if self._discrete:
            self._collect_armor.add_plugin("main", "multinomial_sample")
        else:
            self._collect_armor.add_plugin("main", "action_noise", noise_kwargs={"sigma": 0.1})

    def _forward_collect(self, data_id: list[int], data: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Act with exploration at ``data["obs"]`` of the environments `data_id`.

        Returns ``action``, and other outputs that `_process_transition` reads.
        """
        settings = {name: getattr(self, f"_{name}") for name in self._collect_setting_set}
        output: dict[str, Any] = self._collect_armor.forward(data, **settings)
        return output

    def _data_preprocess_collect(self, data: dict[int, Any]) -> tuple[list[int], dict[str, Any]]:
        """Collate observations by environment; a run has them collated already."""
        return list(data), {"obs": stacked_collate(list(data.values()))}

    def _data_postprocess_collect(
        self, data_id: list[int], data: dict[str, Any]
    ) -> dict[int, dict[str, Any]]:
        """Split outputs by environment."""
        return dict(zip(data_id, default_decollate(data), strict=True))

    _reset_collect = _resetting("_collect_armor")

    def _process_transition(
        self, obs: Any, armor_output: Mapping[str, Any], timestep: BaseEnvTimestep
    ) -> dict[str, Any]:
        """Make a transition; the parts of `armor_output` that this method reads are stored."""
        return {
            "obs": obs,
            "next_obs": timestep.obs,
            "action": armor_output["action"],
            "reward": timestep.reward,
            "done": timestep.done,
        }

    def _get_train_sample(self, traj_cache: deque[Transition]) -> list[Any] | None:
        """Make samples from transitions in time order, which are removed from the cache.

        Returns dictionaries, all with the same keys; None if there are too few transitions.
        """
        ahead = 0 if self._collect_nstep == 1 else self._collect_nstep
        data = self._adder.get_traj(traj_cache, self._traj_len, return_num=ahead)
        data = self._adder.get_nstep_return_data(data, self._collect_nstep, self._traj_len)
        return self._adder.get_train_sample(data)

    def _get_segment_len(self) -> int:
        """Return the number of consecutive transitions for one sample."""
        names = ("_unroll_len", "_collect_nstep")
        return sum(getattr(self, name, 1) for name in names) - 1

    # --- eval

    def _init_eval(self) -> None:
        """Prepare `_forward_eval`."""
        self._eval_armor = Armor(self._model)
        if self._discrete:
            self._eval_armor.add_plugin("main", "argmax_sample")

    def _forward_eval(self, data_id: list[int], data: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Act without exploration; arguments as for `_forward_collect`."""
        output: dict[str, Any] = self._eval_armor.forward(data)
        return output

    _reset_eval = _resetting("_eval_armor")

    # --- command and network

    def _init_command(self) -> None:
        """Prepare the computation of settings, such as schedules."""

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return settings for the next round of collecting, named in `_collect_setting_set`.

        `command_info` has ``learner_step`` (updates), ``env_step`` and ``progress`` (0 to 1).
        """
        return {}

    _get_setting_learn = _get_setting_eval = _get_setting_collect

    def _create_model_from_cfg(
        self, cfg: AttrDict, model_type: type[nn.Module] | None = None
    ) -> nn.Module:
        """Make the network from ``cfg.model``, of a class given by the user or the default."""
        if model_type is not None:
            return model_type(**cfg.model)
        if self._discrete and "obs_dim" in cfg.model:
            image = len(self.observation_space.shape) == 3
            return (ConvDiscreteNet if image else FCDiscreteNet)(**cfg.model)
        options = {key: value for key, value in cfg.model.items() if key not in _SIZES}
        config = ModelConfig(**{"activation": "relu", "orthogonal": False, **options})
        default = QNetwork if self._discrete else DeterministicActor
        return create_model(default, self.observation_space, self.action_space, config)

    # --- the interface of Policy

    @contextmanager
    def testing(self, deterministic: bool = True) -> Iterator[None]:
        """See `Policy`; restores the plugins' state of running episodes."""
        kept = [(vars(plugin), _copied(vars(plugin))) for plugin in self._plugins()]
        try:
            with super().testing(deterministic):
                yield
        finally:
            for now, before in kept:
                now.update(before)

    def forward(self, batch: Batch, state: Any = None) -> Batch:
        """Choose actions; the state marks the starts of episodes."""
        collecting = self.explores
        obs = self.observation(batch.obs)
        rows = np.asarray(batch.get("env_ids", range(len(batch.obs)))).tolist()
        reset = self._reset_collect if collecting else self._reset_eval
        if state is None:
            reset()
        elif len(begun := torch.nonzero(state == 0)):
            reset(data_id=[rows[index] for index in begun.flatten().tolist()])
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
        """See `Policy`; warm-up rows need the same outputs as others."""
        acted = self(batch, state)
        acted.act = act
        return acted  # type: ignore[no-any-return]

    def _find_kept(self, obs: Any, output: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs that `_process_transition` reads, by calling it once."""
        first = row(obs, 0)
        watched = _Watched({key: row(value, 0) for key, value in output.items()})
        timestep = BaseEnvTimestep(first, torch.tensor(0.0), torch.tensor(False), {})
        self._process_transition(first, watched, timestep)
        return tuple(key for key in output if key in watched.read and key != "action")

    def _to_env(self, action: Any) -> np.ndarray:
        if self._bounds is not None:
            return self._bounds.to_env(torch.as_tensor(action, device=self.device))
        act: np.ndarray = _array(action)
        return act + self._start if self._start else act

    def _from_env(self, act: Any) -> Tensor:
        action = self.tensor(act)
        return self._bounds.to_unit(action) if self._bounds is not None else action - self._start

    def advance(self, env_steps: int, progress: float) -> None:
        """See `Policy`; updates the settings of all parts."""
        super().advance(env_steps, progress)
        self._command({"learner_step": self.updates, "env_step": env_steps, "progress": progress})

    def _command(self, info: dict[str, Any]) -> None:
        self._command_info = info
        for part in _PARTS:
            self.set_setting(part, getattr(self, f"_get_setting_{part}")(info))

    def read(
        self, batch_size: int, source: Any, fields: tuple[str, ...]
    ) -> tuple[Batch, np.ndarray]:
        """See `Policy`; the rollout, or one segment per sample."""
        if self._batch_size not in (None, batch_size):
            raise ValueError(
                f"'policy.learn.batch_size' is {self._batch_size}, but 'learn.batch_size' is "
                f"{batch_size}: give both the same value, or leave out the first"
            )
        self._cfg.learn.batch_size = batch_size
        fields = (*fields, "policy") if self._kept else fields
        self.segment_length = self._get_segment_len()
        return super().read(batch_size, source, fields)

    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:
        """Add the list ``samples``; off-policy also their first ``row`` and ``weight``."""
        if self.on_policy:
            return from_leaves({"samples": list(self._all_samples(batch))})
        number = indices.shape[-1]
        found = list(self._first_samples(batch, indices))
        for _ in range(_TRIES):
            if len(found) >= number:
                break
            # Segments that end too early yield no sample and are replaced.
            found += self._first_samples(*self.read(number, buffer, self.fields))
        length = self._get_segment_len()
        if not found and len(buffer) >= 2 * length * buffer.n_envs:  # fine early in a run
            raise ValueError(
                f"_get_train_sample of {type(self).__name__} makes no sample from {length} "
                f"consecutive transitions: set _collect_nstep and _unroll_len in _init_collect, or "
                f"define _get_segment_len, so that segments are long enough"
            )
        if not found:
            return from_leaves({"samples": []})
        found = [found[i % len(found)] for i in range(number)]
        samples, rows, weights = map(list, zip(*found, strict=True))
        leaves = {"samples": samples, "row": np.array(rows)}
        if "weight" in batch:
            leaves["weight"] = self.tensor(np.array(weights, np.float32))
        return from_leaves(leaves)

    def _first_samples(self, batch: Batch, indices: np.ndarray) -> Iterator[tuple[Any, int, float]]:
        """Yield the first sample of each segment that has one, its first row, and its weight."""
        rows = indices.reshape(-1, indices.shape[-1])[0]
        weights = to_numpy(batch.weight) if "weight" in batch else np.ones(len(rows))
        for b, cache in self._trajectories(batch):
            for sample in (self._get_train_sample(cache) or [])[:1]:
                yield sample, int(rows[b]), float(weights[b])

    def _all_samples(self, batch: Batch) -> Iterator[Any]:
        """Yield the samples of each trajectory, until `_get_train_sample` takes no more."""
        for _, cache in self._trajectories(batch):
            before = len(cache) + 1
            while 0 < len(cache) < before:
                before = len(cache)
                yield from self._get_train_sample(cache) or []

    def _trajectories(self, batch: Batch) -> Iterator[tuple[int, deque[Transition]]]:
        """Yield uninterrupted parts of episodes of a batch [B] or [T, B], each with its column."""
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
        mask = to_numpy(batch.get("mask", np.ones(shape, bool)))
        cut = to_numpy(batch.get("cut", np.zeros(shape, bool)))
        steps = [row(table, t) for t in range(len(mask))]
        for b in range(shape[1]):
            cache: deque[Transition] = deque()
            for t, step in enumerate(steps):
                if mask[t, b]:
                    at = row(step, b)
                    result = BaseEnvTimestep(at["next_obs"], at["reward"], at["done"], {})
                    cache.append(self._process_transition(at["obs"], at["output"], result))
                if cache and (cut[t, b] or step is steps[-1]):
                    yield b, cache
                    cache = deque()

    def learn(self, batch: Batch, *, batch_size: int = 64, repeat: int = 1, **_: Any) -> Metrics:
        """Call `_forward_learn` with all samples; on-policy with minibatches, `repeat` times."""
        samples: list[Any] = batch.samples
        learned: dict[str, Any] = {}
        if not samples:
            return learned
        if not self.on_policy:
            learned = self._learned(samples, batch.get("weight"))
            batch.priority = learned.pop("priority", None)
        else:
            n_parts = max(1, round(len(samples) / batch_size))
            for _epoch in range(repeat):
                order = torch.randperm(len(samples), generator=self.generator, device=self.device)
                for part in order.tensor_split(n_parts):
                    learned = self._learned([samples[i] for i in part.tolist()])
        return {f"train/{key}": value for key, value in learned.items() if _is_number(value)}

    def _learned(self, samples: list[Any], weight: Tensor | None = None) -> dict[str, Any]:
        if weight is not None:
            pairs = zip(samples, weight.unbind(), strict=True)
            samples = [{**sample, "weight": each, "IS": each} for sample, each in pairs]
        return self._forward_learn(self._data_preprocess_learn(samples))

    def post_process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> None:
        """See `Policy`; the rows of the samples have the priorities."""
        super().post_process_fn(batch, buffer, batch.get("row", indices))

    def training_state(self) -> dict[str, Any]:
        """See `Policy`; includes the inputs of the settings."""
        state = super().training_state() | {"command_info": self._command_info}
        state["optimizers"] = copy.deepcopy(state["optimizers"])  # torch does not copy
        return state

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `Policy`."""
        super().load_training_state(state)
        self._command(state["command_info"])


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy, including containers; tensors and generators are shared."""
    return {
        name: copy.copy(value) if isinstance(value, dict | list | set | GaussianNoise) else value
        for name, value in attributes.items()
    }


def _array(value: Any) -> Any:
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "numel") and value.numel() == 1)
