"""RLinf's `RewardWorker`, in this process: classifiers of images, and rules for text."""

import re
from collections.abc import Iterable, Mapping, Sequence
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


class RewardWorker:
    """Computes rewards of images with a fitted classifier, or of text by rules; and fits.

    Tasks are embodied if ``runner.task_type`` of the config (a mapping, or a file) says so; without
    it, if the config names an environment or images.
    """

    def __init__(self, cfg: Any) -> None:
        self.cfg = AttrDict(sources.sections(cfg))
        self.reward = self.cfg.get("reward", AttrDict())
        self.options = self.reward.get("reward_model") or AttrDict()
        named = self.cfg.get("runner", {}).get("task_type")
        if named is None:
            keys = {*self.options, *(self.reward.get("model") or {}), *self.cfg}
            named = "embodied" if keys & {"image_keys", "image_size", "env"} else "text"
        self.task_type = "embodied" if named == "embodied" else "text"

    def init(self) -> None:
        """Load the classifier, or the rules; a worker that fits needs neither."""
        if self.task_type == "text":
            if self.reward.get("use_reward_model", False):
                raise ValueError(
                    "there are no reward models for text: set 'reward.use_reward_model' to false"
                )
            self._rules = self.reward.get("rules", {"exact_match": 1.0})
            for rule in self._rules.keys() - {"exact_match", "format"}:
                raise ValueError(f"'reward.rules' has {rule!r}: use exact_match and format")
        elif self.options.get("checkpoint_path") is not None:
            folder = as_fit(self.options.checkpoint_path, self.options.get("image_size"))
            self.members, self.meta = load_classifier(folder)
            check_fits(self.meta, self.options)

    def compute_rewards(self, data: Any, answers: Sequence[str] | None = None) -> torch.Tensor:
        """Return rewards [B] of images [B, ...], by camera or of the only one; or of responses.

        `answers` are the right ones, for responses.
        """
        if self.task_type == "text":
            pairs = zip(data, answers or [""] * len(data), strict=True)
            return torch.tensor([self._of_text(*pair) for pair in pairs], dtype=torch.float32)
        keys = self.meta["model"]["image_keys"]
        images = data.get("obs", data) if isinstance(data, Mapping) else {keys[0]: data}
        tensors = {key: torch.as_tensor(images[key]) for key in keys}
        with torch.no_grad():
            logits = np.stack([member(tensors).numpy() for member in self.members])
        found = ensemble_probability(logits, self.meta["temperature"])
        if self.options.get("reward_type", "binary") == "binary":
            found = found >= self.meta["threshold"]
        return torch.as_tensor(found, dtype=torch.float32)

    def _of_text(self, response: str, answer: str) -> float:
        in_format = re.fullmatch(self.reward.get("format", FORMAT), response) is not None
        found = {"exact_match": exact_match(response, answer), "format": in_format}
        return float(sum(weight * found[rule] for rule, weight in self._rules.items()))

    def fit(self, overrides: Iterable[str] = ()) -> dict[str, Any]:
        """Fit a classifier; see `guerdon.training.fit.fit` for the result.

        Every checkpoint is also a file, ``SAVE_DIR/step_N/checkpoint.pt``.
        """
        result = fit(compose_fit(*translated_fit(self.cfg, overrides)))
        write_checkpoints(result["save_dir"])
        return result
