"""Export policies and learned rewards to ONNX."""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from guerdon.data.batch import Batch
from guerdon.data.files import atomic_file
from guerdon.data.spaces import part_spaces
from guerdon.extras import require
from guerdon.policy import Policy
from guerdon.reward import Reward
from guerdon.reward.success_classifier import ClassifierReward
from guerdon.training.fit_files import is_fit
from guerdon.training.replay import Checkpoint, load_policy, load_reward

Part = Literal["policy", "reward"]

EXPORTABLE = (
    "gail", "airl", "fairl", "gcl", "red", "rnd", "icm", "trex", "drex", "preference", "classifier",
)  # fmt: skip
"""Rewards that can be exported; also an ensemble or a sum of these, except for `classifier`."""
_N_ROWS = 2  # of the traced example: torch.export takes a dimension of 1 for a constant


class Graph(nn.Module):
    """A function of tensors by name, to be traced.

    Args:
        function: The function.
        inputs: Example of its inputs: tensors [B, ...] by name, nested for Dict and Tuple spaces.
        output: Name of its output.
    """

    def __init__(
        self, function: Callable[[Any], Tensor], inputs: dict[str, Any], output: str
    ) -> None:
        super().__init__()
        self.function, self.inputs, self.output = function, inputs, output

    def forward(self, inputs: Any) -> Tensor:
        """See `function`."""
        return self.function(inputs)


def export(
    source: str | Path | Policy | Reward,
    path: str | Path,
    *,
    part: Part = "policy",
    checkpoint: Checkpoint | None = None,
) -> dict[str, str]:
    """Write a policy or a learned reward as an ONNX file, for batches of any size.

    The output ``action`` of a policy is what `Policy.predict` returns, and the output ``reward`` of
    a reward is what `Reward.score` returns. Of a success classifier it is ``probability``.

    Args:
        source: A run directory, the ``reward.save_dir`` of a fit, a policy, or a reward.
        path: The file to write.
        part: Part of the run to export: ``policy`` or ``reward``.
        checkpoint: Policy of the run: ``best`` (by default), ``latest`` or a step.

    Returns:
        Type and shape of the inputs and of the output, by name.
    """
    require("onnxscript", "export")
    if isinstance(source, str | Path):
        if part == "policy" and not is_fit(source):
            source = load_policy(source, checkpoint or "best")
        elif checkpoint is None:
            source = load_reward(source)
        else:
            raise ValueError(
                f"{source} has one reward, the newest, and not one for each checkpoint: leave out "
                "'checkpoint'"
            )
    try:
        if isinstance(source, Policy):
            with source.testing():
                return _write(_policy_graph(source), path)
        return _write(_reward_graph(source), path)
    except (NotImplementedError, torch.onnx.OnnxExporterError) as error:
        raise ValueError(_refusal(source, error)) from error


def _refusal(source: Policy | Reward, error: BaseException) -> str:
    while error.__cause__ is not None:  # the first error names the operation
        error = error.__cause__
    reason = f" ({str(error).splitlines()[0]})" if str(error) else ""
    if isinstance(source, Policy):
        return (
            f"the policy {type(source).__name__} cannot be exported{reason}: it has to implement "
            "'best_action' in torch alone"
        )
    return (
        f"the reward {' + '.join(source.terms)} cannot be exported{reason}: only networks over "
        f"single transitions can be, which are those of {', '.join(EXPORTABLE)}"
    )


def _policy_graph(policy: Policy) -> Graph:
    obs, keys = _example(policy.observation_space), policy.obs_keys
    if keys is not None and len(keys) == 1:  # the space is then that of the part
        obs = {keys[0]: obs}
    if isinstance(obs, dict):
        return Graph(policy.best_action, obs, "action")
    return Graph(lambda inputs: policy.best_action(inputs["obs"]), {"obs": obs}, "action")


def _reward_graph(reward: Reward) -> Graph:
    model = reward.models[0]
    if isinstance(model, ClassifierReward) and len(reward.models) == 1:
        image = torch.zeros(_N_ROWS, *model.meta["model"]["image_size"], dtype=torch.uint8)
        return Graph(model.success, {key: image.clone() for key in model.image_keys}, "probability")
    reads_episodes = "annotations" in reward.fields or reward.history
    if reward.is_env or reads_episodes or reward.changes_replay:
        raise NotImplementedError
    observation, action = model.setting.observation_space, model.setting.action_space
    known = {"obs": observation, "act": action, "obs_next": observation}
    numbers = {"rew": torch.float32, "terminated": torch.bool, "truncated": torch.bool}
    fields = reward.fields if reward.is_learned else (*reward.fields, "rew")
    inputs = {name: _example(space) for name, space in known.items() if name in fields}
    inputs |= {n: torch.zeros(_N_ROWS, dtype=t) for n, t in numbers.items() if n in fields}
    if not inputs or inputs.keys() != set(fields):
        raise NotImplementedError
    traced = copy.copy(reward)  # `resolve` keeps the newest rewards

    def resolve(inputs: dict[str, Any]) -> Tensor:
        n_rows = torch.utils._pytree.tree_leaves(inputs)[0].shape[0]
        batch = Batch({"rew": torch.zeros(n_rows), **inputs}).to_device(model.device)
        rew: Tensor = traced.resolve(batch).rew
        return rew

    return Graph(resolve, inputs, "reward")


def _example(space: Space[Any]) -> Any:
    """Return example tensors [B, ...] of a space, nested for a Dict or Tuple."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return {key: _example(part) for key, part in part_spaces(space).items()}
    return torch.from_numpy(np.zeros((_N_ROWS, *(space.shape or ())), space.dtype))


def _names(inputs: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, part in inputs.items():
        if isinstance(part, dict):
            yield from _names(part, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@torch.no_grad()
def _write(graph: Graph, path: str | Path) -> dict[str, str]:
    names = [*_names(graph.inputs)]
    if graph.output in names:
        raise ValueError(
            f"an observation has the part {graph.output!r}, which is the name of the output: "
            "rename that part, or choose others in 'policy.model.keys'"
        )
    batch = torch.export.Dim("batch")
    shapes = torch.utils._pytree.tree_map(lambda _: {0: batch}, graph.inputs)
    with _quiet():
        program: Any = torch.onnx.export(
            graph.eval(),
            kwargs={"inputs": graph.inputs},  # a dictionary in `args` would be taken as keywords
            input_names=names,
            output_names=[graph.output],
            dynamic_shapes={"inputs": shapes},
            verbose=False,
        )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(program.model_proto.SerializeToString())
    values = (*program.model.graph.inputs, *program.model.graph.outputs)
    return {
        value.name: f"{value.dtype.numpy().name} [{', '.join(map(str, value.shape))}]"
        for value in values
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings of torch about its own calls, and about packages that are not needed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
