"""nerveX's learner and its hooks; in a run, the learner is a callback."""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn

from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.compat.nervex.log_files import LogFiles
from guerdon.config.registry import Registry
from guerdon.data.unpickle import load_weights
from guerdon.training.callback import Callback

_log = logging.getLogger(__name__)


class LearnerHook:
    """Base of hooks: `__call__` gets the learner, at every ``freq``-th iteration for those here.

    Hooks of one position are called by increasing priority numbers. An iteration is an update.
    """

    positions: ClassVar = ("before_run", "before_iter", "after_iter", "after_run")
    method: ClassVar[str | None] = None
    """Method of the learner that hooks of this class call."""

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
        """Do what the hook is for, if it is time."""
        if self.method is not None and engine.rank == 0 and engine.train_iter % self.freq == 0:
            getattr(engine, self.method)()


HOOKS: Registry[type[LearnerHook]] = Registry("hook", "guerdon.compat.nervex.worker.learner")
for _name, _method in (
    ("load_ckpt", "load_checkpoint"),
    ("save_ckpt", "save_checkpoint"),
    ("log_show", "show_log"),
    ("log_reduce", None),  # one process has all metrics
):
    HOOKS.register(_name, type(_name, (LearnerHook,), {"method": _method}))


def register_learner_hook(name: str, hook_type: type[LearnerHook]) -> None:
    """Register a class of hooks, for the ``type`` of a hook in a config."""
    HOOKS.register(name, hook_type, override=True)


class BaseLearner(Callback):
    """Calls hooks around a run and its updates; give it to ``guerdon.train(callback=...)``.

    Or set `policy` to a policy's ``learn_mode``, and call `train` in a loop of your own. `cfg` has
    ``hook``, dictionaries of ``type``, ``position`` and so on by name; and ``load_path``.
    """

    name, rank = "BaseLearner", 0

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        cfg = cfg or {}
        self.load_path = str(cfg.get("load_path") or "")
        self.hooks: list[LearnerHook] = []
        self.policy: Any = None
        self.last_iter = SimpleNamespace(val=0)
        self.log_buffer: dict[str, Any] = {}
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
        """Save the weights in the current folder: ``ckptBaseLearner*/iteration_N.pth.tar``."""
        path = Path(f"ckpt{self.name}{id(self)}") / f"iteration_{self.train_iter}.pth.tar"
        path.parent.mkdir(exist_ok=True)
        weights = {name: each.detach().cpu() for name, each in self.model.state_dict().items()}
        torch.save({"model": weights, "last_iter": self.train_iter}, path)

    def load_checkpoint(self) -> None:
        """Load the weights at `load_path`, a file of `save_checkpoint`, if that is set."""
        if self.load_path:
            saved = load_weights(Path(self.load_path))
            self.model.load_state_dict(saved["model"])
            self.last_iter.val = saved["last_iter"]
            self.info(f"loaded {self.load_path}")

    def show_log(self) -> None:
        """Show the newest metrics."""
        found = " ".join(f"{name}={float(value):.6g}" for name, value in self.log_buffer.items())
        self.info(f"iteration {self.train_iter}: {found}")

    def train(self, data: list[dict[str, Any]]) -> None:
        """Update the policy with samples of a `BufferManager`; sets `priority_info`."""
        self.call_hook("before_iter")
        metrics = self.policy.forward(self.policy.data_preprocess(data))
        keys = ("replay_buffer_idx", "replay_unique_id")
        self.priority_info = {key: [item.get(key) for item in data] for key in keys}
        self.priority_info["priority"] = metrics.pop("priority", None)
        self.on_update_end(None, metrics)

    # --- in a run

    def on_start(self, run: Any) -> None:
        """See `Callback`."""
        self.policy, self.info = run.policy, run.say
        self.last_iter.val = run.policy.updates
        self.call_hook("before_run")

    def on_update_start(self, run: Any) -> None:  # noqa: ARG002
        """See `Callback`."""
        self.call_hook("before_iter")

    def on_update_end(self, run: Any, metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        """See `Callback`."""
        self.log_buffer = {name.removeprefix("train/"): each for name, each in metrics.items()}
        self.call_hook("after_iter")
        self.last_iter.val += 1

    def on_end(self, run: Any, summary: Mapping[str, Any]) -> None:  # noqa: ARG002
        """See `Callback`."""
        self.call_hook("after_run")


_LOGS = {
    "actor": ("collect", ("rollout/", "time/")),
    "learner": ("learner", ("train/", "reward/")),
    "evaluator": ("evaluator", ("eval/",)),
    "buffer/armor_buffer": ("armor", ("buffer/",)),
}
"""Folders below ``log``: the name of their files, and the metrics in them."""


class SerialLearner(BaseLearner):
    """Leaves the files of a serial run in the current folder; no run reads them.

    ``log`` has the metrics, ``ckptBaseLearner*`` the weights of each best evaluation so far.
    """

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        super().__init__(cfg)
        self._files = cache(_log_files)

    def on_log(self, run: Any, metrics: Mapping[str, float]) -> None:
        """See `Callback`."""
        step = run.monitor.step
        moved = {"buffer/pushed": step, "buffer/sampled_batches": self.train_iter}
        for folder, (_, prefixes) in _LOGS.items():
            every: dict[str, float] = {**metrics, **moved}
            if found := {key: each for key, each in every.items() if key.startswith(prefixes)}:
                self._files(folder).write(f"step {step}", step, found)

    def on_best(self, run: Any) -> None:  # noqa: ARG002
        """See `Callback`."""
        self.save_checkpoint()


def _log_files(folder: str) -> LogFiles:
    return LogFiles(Path("log") / folder, _LOGS[folder][0], tensorboard=folder != "actor")


def learner_of(config: Any, kind: type[BaseLearner] = BaseLearner) -> BaseLearner | None:
    """Take hooks out of a config, and return their learner, for a run; None if it needs none.

    In a run, ``run.log_every`` and ``policy.init_from`` do what the hooks ``log_show`` and
    ``load_ckpt`` are for.
    """
    learner = config.get("learner") if isinstance(config, Mapping) else None
    hooks: Any = learner.get("hook") if isinstance(learner, Mapping) else None
    kept = {
        name: hooks.pop(name)
        for name, hook in ([*hooks.items()] if isinstance(hooks, dict) else ())
        if hook.get("type") not in ("log_show", "log_reduce", "load_ckpt")
    }
    return kind({"hook": kept}) if kept or kind is not BaseLearner else None
