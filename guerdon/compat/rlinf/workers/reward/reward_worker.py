"""RLinf's `RewardWorker`, in this process: classifiers of images, and rules for text."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from guerdon.compat.layouts import translated_fit
from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.compat.rlinf.checkpoint import as_fit, write_checkpoints
from guerdon.config import sources
from guerdon.ops.classification import ensemble_probability
from guerdon.training.fit import fit
from guerdon.training.fit_files import check_fits, compose_fit, load_classifier

FORMAT = r"(?s)\s*<think>.*</think>\s*<answer>.*</answer>\s*"
"""Default of ``reward.format``: reasoning, then an answer, in tags."""


def exact_match(response: str, answer: str) -> float:
    """Return 1 if the answer in a response is the right one: in tags, a box, or all of it."""
    found = re.findall(r"(?s)<answer>(.*?)</answer>|\\boxed\{([^{}]*)\}", response)
    given = "".join(found[-1]) if found else response
    return float(" ".join(given.split()) == " ".join(str(answer).split()))


def has_format(response: str, pattern: str = FORMAT) -> float:
    """Return 1 if a response matches a regular expression as a whole."""
    return float(re.fullmatch(pattern, response) is not None)


class RewardWorker:
    """Computes rewards of images with a fitted classifier, or of text by rules; and fits.

    Args:
        cfg: Config: a mapping, or the path of a file.
        placement: Not read: everything runs in this process.
    """

    def __init__(self, cfg: Any, placement: Any = None) -> None:  # noqa: ARG002
        self.cfg = AttrDict(sources.sections(cfg))
        self.reward = self.cfg.get("reward", AttrDict())
        self.task_type = self._task_type()

    def _task_type(self) -> str:
        """Return ``embodied`` or ``text``."""
        named = self.cfg.get("runner", {}).get("task_type")
        if named is not None:
            return "embodied" if named == "embodied" else "text"
        parts = (self.reward.get("reward_model") or {}, self.reward.get("model") or {})
        images = any({"image_keys", "image_size"} & part.keys() for part in parts)
        return "embodied" if images or "env" in self.cfg else "text"

    def init(self) -> None:
        """Load the classifier, or the rules; a worker that fits needs neither."""
        options = self.reward.get("reward_model") or AttrDict()
        if self.task_type == "text":
            if self.reward.get("use_reward_model", False):
                raise ValueError(
                    "there are no reward models for text: set 'reward.use_reward_model' to false"
                )
            self._rules = self._make_rules()
        elif options.get("checkpoint_path") is not None:
            folder = as_fit(options.checkpoint_path, options.get("image_size"))
            self.members, self.meta = load_classifier(folder)
            check_fits(self.meta, options)

    init_worker = init

    def _make_rules(self) -> dict[str, tuple[float, Callable[..., float]]]:
        pattern = self.reward.get("format", FORMAT)
        known: dict[str, Callable[..., float]] = {
            "exact_match": exact_match,
            "format": lambda response, _: has_format(response, pattern),
        }
        weights = self.reward.get("rules", {"exact_match": 1.0})
        unknown = [name for name in weights if name not in known]
        if unknown:
            raise ValueError(f"'reward.rules' has {unknown[0]!r}: use {' and '.join(known)}")
        return {name: (weight, known[name]) for name, weight in weights.items()}

    def compute_rewards(self, data: Any, answers: Sequence[str] | None = None) -> torch.Tensor:
        """Return rewards [B].

        Args:
            data: Images [B, ...], by camera or of the only one; or responses, for text.
            answers: Right answers, for text.
        """
        if self.task_type == "text":
            pairs = zip(data, answers or [""] * len(data), strict=True)
            total = [
                sum(weight * rule(response, answer) for weight, rule in self._rules.values())
                for response, answer in pairs
            ]
            return torch.tensor(total, dtype=torch.float32)
        keys = self.meta["model"]["image_keys"]
        images = data.get("obs", data) if isinstance(data, Mapping) else {keys[0]: data}
        tensors = {key: torch.as_tensor(images[key]) for key in keys}
        with torch.no_grad():
            logits = np.stack([member(tensors).numpy() for member in self.members])
        found = ensemble_probability(logits, self.meta["temperature"])
        if self.reward.reward_model.get("reward_type", "binary") == "binary":
            found = found >= self.meta["threshold"]
        return torch.as_tensor(found, dtype=torch.float32)

    def fit(self, overrides: Iterable[str] = ()) -> dict[str, Any]:
        """Fit a classifier; see `guerdon.training.fit.fit` for the result.

        Every checkpoint is also a file, ``SAVE_DIR/step_N/checkpoint.pt``.

        Args:
            overrides: ``key=value``.
        """
        result = fit(compose_fit(*translated_fit(self.cfg, overrides)))
        write_checkpoints(result["save_dir"])
        return result
