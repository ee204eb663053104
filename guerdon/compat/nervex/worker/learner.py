"""nerveX's learner and its hooks; in a run, the learner is a callback."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.config.registry import Registry
from guerdon.data.serializer import read_tree, write_tree
from guerdon.training.callback import Callback

if TYPE_CHECKING:
    from guerdon.training.run import Run

_log = logging.getLogger(__name__)
_KIND = "policy"


class LearnerHook:
    """Base of hooks: `__call__` gets the learner.

    Args:
        name: Name of the hook.
        priority: Hooks of one position are called by increasing numbers.
        position: ``before_run``, ``after_run``, ``before_iter`` or ``after_iter``; an iteration is
            an update of the policy.
        ext_args: ``freq``: call the hooks here at every so many iterations.
    """

    positions: ClassVar = ("before_run", "before_iter", "after_iter", "after_run")

    def __init__(
        self,
        name: str,
        priority: float = 100.0,
        *,
        position: str,
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        if position not in self.positions:
            names = ", ".join(self.positions)
            raise ValueError(f"the hook {name!r} has no position {position!r}: use one of {names}")
        if priority < 0:
            raise ValueError(f"the priority of the hook {name!r} is {priority}: use 0 or more")
        self.name, self.priority, self.position = name, priority, position
        self.freq = int((ext_args or {}).get("freq", 1))

    def __call__(self, engine: Any) -> Any:
        """Do what the hook is for."""
        raise NotImplementedError

    def due(self, engine: "BaseLearner") -> bool:
        """Whether it is time, by ``freq``."""
        return engine.rank == 0 and engine.last_iter.val % self.freq == 0


Hooks = dict[str, list[LearnerHook]]
HOOKS: Registry[type[LearnerHook]] = Registry("hook", "guerdon.compat.nervex.worker.learner")


def register_learner_hook(name: str, hook_type: type[LearnerHook]) -> None:
    """Register a class of hooks, for the ``type`` of a hook in a config."""
    HOOKS.register(name, hook_type, override=True)


class LoadCkptHook(LearnerHook):
    """Loads the weights at ``engine.load_path``, a folder of `SaveCkptHook`, if that is set."""

    def __call__(self, engine: "BaseLearner") -> None:
        """Load the weights."""
        if engine.load_path:
            saved = read_tree(engine.load_path, _KIND)
            engine.model.load_state_dict(saved["model"])
            engine.last_iter.val = saved["last_iter"]
            engine.info(f"loaded {engine.load_path}")


class SaveCkptHook(LearnerHook):
    """Saves the weights in the current folder: ``ckpt_NAME/iteration_N``."""

    def __call__(self, engine: "BaseLearner") -> None:
        """Save the weights, if it is time."""
        if self.due(engine):
            number = engine.last_iter.val
            path = Path(f"ckpt_{engine.name}") / f"iteration_{number}"
            path.parent.mkdir(exist_ok=True)
            write_tree(path, {"model": engine.model.state_dict(), "last_iter": number}, _KIND)


class LogShowHook(LearnerHook):
    """Shows the learner's metrics."""

    def __call__(self, engine: "BaseLearner") -> None:
        """Show the metrics, if it is time, and clear them."""
        if self.due(engine):
            found = " ".join(f"{name}={value:.6g}" for name, value in engine.log_buffer.items())
            engine.info(f"iteration {engine.last_iter.val}: {found}")
        engine.log_buffer.clear()


class LogReduceHook(LearnerHook):
    """Does nothing: one process has all metrics."""

    def __call__(self, engine: "BaseLearner") -> None:
        """Do nothing."""


for _name, _hook in {
    "load_ckpt": LoadCkptHook,
    "save_ckpt": SaveCkptHook,
    "log_show": LogShowHook,
    "log_reduce": LogReduceHook,
}.items():
    register_learner_hook(_name, _hook)


def build_learner_hook_by_cfg(cfg: Mapping[str, Mapping[str, Any]]) -> Hooks:
    """Make hooks, by position, from dictionaries of ``type``, ``position`` and so on."""
    hooks: Hooks = {position: [] for position in LearnerHook.positions}
    for name, item in cfg.items():
        options = {"name": name, **item}
        hook = HOOKS.get(options.pop("type"))
        options["ext_args"] = AttrDict(options.get("ext_args") or {})
        add_learner_hook(hooks, hook(options.pop("name"), options.pop("priority", 100), **options))
    return hooks


def add_learner_hook(hooks: Hooks, hook: LearnerHook) -> None:
    """Add a hook after those of the same or a lower priority number."""
    hooks[hook.position].append(hook)
    hooks[hook.position].sort(key=lambda each: each.priority)


def merge_hooks(hooks1: Hooks, hooks2: Hooks) -> Hooks:
    """Return the hooks of both, by priority."""
    return {
        position: sorted(hooks1[position] + hooks2[position], key=lambda each: each.priority)
        for position in LearnerHook.positions
    }


class BaseLearner(Callback):
    """Calls hooks around a run and its updates; give it to ``guerdon.train(callback=...)``.

    Or set `policy` to a policy's ``learn_mode``, and call `train` in a loop of your own.

    Args:
        cfg: ``hook``, dictionaries of hooks by name; and ``load_path``.
    """

    rank = 0
    name = "BaseLearner"

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        cfg = cfg or {}
        self.load_path = str(cfg.get("load_path") or "")
        self.hooks = build_learner_hook_by_cfg(cfg.get("hook") or {})
        self.policy: Any = None
        self.last_iter = SimpleNamespace(val=0)
        self.log_buffer: dict[str, float] = {}
        self.priority_info: dict[str, Any] | None = None
        self.info: Callable[[str], None] = _log.info

    @property
    def train_iter(self) -> int:
        """Number of updates."""
        return int(self.last_iter.val)

    @property
    def model(self) -> nn.Module:
        """The network of the policy, or the policy itself."""
        if isinstance(self.policy, nn.Module):
            return self.policy
        model: nn.Module = self.policy.state_dict_handle()["model"]
        return model

    def register_hook(self, hook: LearnerHook) -> None:
        """Add a hook."""
        add_learner_hook(self.hooks, hook)

    def call_hook(self, name: str) -> None:
        """Call the hooks of a position."""
        for hook in self.hooks[name]:
            hook(self)

    def save_checkpoint(self) -> None:
        """Save the weights now."""
        SaveCkptHook("save_ckpt_after_run", position="after_run")(self)

    def train(self, data: list[dict[str, Any]]) -> None:
        """Update the policy with samples of a `BufferManager`; sets `priority_info`."""
        self.call_hook("before_iter")
        metrics = self.policy.forward(self.policy.data_preprocess(data))
        keys = ("replay_buffer_idx", "replay_unique_id")
        self.priority_info = {key: [item.get(key) for item in data] for key in keys}
        self.priority_info["priority"] = metrics.pop("priority", None)
        self._trained(metrics)

    def _trained(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            self.log_buffer[name.removeprefix("train/")] = float(value)
        self.call_hook("after_iter")
        self.last_iter.val += 1

    # --- in a run

    def on_start(self, run: "Run") -> None:
        """See `Callback`."""
        self.policy, self.info = run.policy, run.say
        self.name = f"{type(self).__name__}_{run.path.name}"
        self.last_iter.val = run.policy.updates
        self.call_hook("before_run")

    def on_update_start(self, run: "Run") -> None:  # noqa: ARG002
        """See `Callback`."""
        self.call_hook("before_iter")

    def on_update_end(self, run: "Run", metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        """See `Callback`."""
        self._trained(metrics)

    def on_end(self, run: "Run", summary: Mapping[str, Any]) -> None:  # noqa: ARG002
        """See `Callback`."""
        self.call_hook("after_run")


def learner_of(config: Any) -> BaseLearner | None:
    """Take hooks out of a config, and return their learner, for a run; None if it needs none.

    In a run, ``run.log_every`` and ``policy.init_from`` do what the hooks ``log_show`` and
    ``load_ckpt`` are for.
    """
    learner = config.get("learner") if isinstance(config, Mapping) else None
    hooks = learner.get("hook") if isinstance(learner, Mapping) else None
    if not isinstance(hooks, dict):
        return None
    kept = {
        name: hooks.pop(name)
        for name, hook in [*hooks.items()]
        if hook.get("type") not in ("log_show", "log_reduce", "load_ckpt")
    }
    return BaseLearner({"hook": kept}) if kept else None
