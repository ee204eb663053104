"""nerveX's learner and its hooks; in a run, the learner is a callback."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.compat.nervex.run_files import save_weights
from guerdon.config.registry import Registry
from guerdon.data.unpickle import load_weights
from guerdon.training.callback import Callback

if TYPE_CHECKING:
    from guerdon.training.run import Run

_log = logging.getLogger(__name__)


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
        """Do what the hook is for; here nothing."""

    def due(self, engine: "BaseLearner") -> bool:
        """Whether it is time, by ``freq``."""
        return engine.rank == 0 and engine.train_iter % self.freq == 0


HOOKS: Registry[type[LearnerHook]] = Registry("hook", "guerdon.compat.nervex.worker.learner")
HOOKS.register("log_reduce", LearnerHook)  # one process has all metrics


def register_learner_hook(name: str, hook_type: type[LearnerHook]) -> None:
    """Register a class of hooks, for the ``type`` of a hook in a config."""
    HOOKS.register(name, hook_type, override=True)


@HOOKS.register("load_ckpt")
class LoadCkptHook(LearnerHook):
    """Loads the weights at ``engine.load_path``, a file of `SaveCkptHook`, if that is set."""

    def __call__(self, engine: "BaseLearner") -> None:
        """Load the weights."""
        if engine.load_path:
            saved = load_weights(Path(engine.load_path))
            engine.model.load_state_dict(saved["model"])
            engine.last_iter.val = saved["last_iter"]
            engine.info(f"loaded {engine.load_path}")


@HOOKS.register("save_ckpt")
class SaveCkptHook(LearnerHook):
    """Saves the weights in the current folder: ``ckptBaseLearner*/iteration_N.pth.tar``."""

    def __call__(self, engine: "BaseLearner") -> None:
        """Save the weights, if it is time."""
        if self.due(engine):
            folder = Path(f"ckpt{engine.name}{id(engine)}")
            save_weights(folder, engine.model, engine.train_iter)


@HOOKS.register("log_show")
class LogShowHook(LearnerHook):
    """Shows the learner's metrics."""

    def __call__(self, engine: "BaseLearner") -> None:
        """Show the metrics, if it is time, and clear them."""
        if self.due(engine):
            found = " ".join(f"{name}={value:.6g}" for name, value in engine.log_buffer.items())
            engine.info(f"iteration {engine.train_iter}: {found}")
        engine.log_buffer.clear()


class BaseLearner(Callback):
    """Calls hooks around a run and its updates; give it to ``guerdon.train(callback=...)``.

    Or set `policy` to a policy's ``learn_mode``, and call `train` in a loop of your own.

    Args:
        cfg: ``hook``, dictionaries of ``type``, ``position`` and so on by name; and ``load_path``.
    """

    name, rank = "BaseLearner", 0

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        cfg = cfg or {}
        self.load_path = str(cfg.get("load_path") or "")
        self.hooks: list[LearnerHook] = []
        self.policy: Any = None
        self.last_iter = SimpleNamespace(val=0)
        self.log_buffer: dict[str, float] = {}
        self.priority_info: dict[str, Any] | None = None
        self.info: Callable[[str], None] = _log.info
        for name, given in (cfg.get("hook") or {}).items():
            options = {"name": name, "priority": 100, **given}
            options["ext_args"] = AttrDict(options.get("ext_args") or {})
            hook = HOOKS.get(options.pop("type"))
            self.register_hook(hook(options.pop("name"), options.pop("priority"), **options))

    @property
    def train_iter(self) -> int:
        """Number of updates."""
        return int(self.last_iter.val)

    @property
    def model(self) -> nn.Module:
        """The network of the policy, or the policy itself."""
        whole = isinstance(self.policy, nn.Module)
        model: nn.Module = self.policy if whole else self.policy.state_dict_handle()["model"]
        return model

    def register_hook(self, hook: LearnerHook) -> None:
        """Add a hook after those of the same or a lower priority number."""
        self.hooks.append(hook)
        self.hooks.sort(key=lambda each: each.priority)

    def call_hook(self, name: str) -> None:
        """Call the hooks of a position."""
        for hook in self.hooks:
            if hook.position == name:
                hook(self)

    def save_checkpoint(self) -> None:
        """Save the weights now."""
        SaveCkptHook("save_ckpt", position="after_run")(self)

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
