"""Optimizers with limits on gradients, and conversions of data."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from guerdon.compat.nervex.torch_utils import Adam, RMSprop, to_device, to_ndarray, to_tensor

T = torch.tensor


def limited(gradient, kind=Adam, **options):
    """Return the gradients that a step uses."""
    parameter = nn.Parameter(torch.zeros(len(gradient)))
    optimizer = kind([parameter], lr=0.0, **options)
    parameter.grad = T(gradient, dtype=torch.float32)
    optimizer.step()
    return parameter.grad.tolist()


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_without_options_it_is_torchs(kind):
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    options = {"lr": 0.1, "weight_decay": 0.1}
    pairs = (
        (ours, kind(ours.parameters(), **options)),
        (theirs, getattr(torch.optim, kind.__name__)(theirs.parameters(), **options)),
    )
    for seed in range(4):
        for model, optimizer in pairs:
            optimizer.zero_grad()
            rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
            model(rows).square().sum().backward()
            optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert pairs[0][1].defaults["lr"] == 0.1


def test_decoupled_weight_decay():
    found = []
    for optim_type in ("adam", "adamw"):
        parameter = nn.Parameter(torch.ones(1))
        parameter.grad = torch.zeros(1)
        Adam([parameter], lr=0.1, weight_decay=0.5, optim_type=optim_type).step()
        found.append(parameter.item())
    assert found == pytest.approx([0.9, 0.95])  # a whole step of Adam, and 1 - 0.1 * 0.5


def test_clipping_by_value_and_norm():
    options = {"grad_clip_type": "clip_value", "clip_value": 1.0}
    assert limited([3.0, -4.0, 0.5], **options) == [1.0, -1.0, 0.5]
    options = {"grad_clip_type": "clip_norm", "clip_value": 1.0}
    assert limited([3.0, -4.0], **options) == pytest.approx([0.6, -0.8])
    assert limited([0.3, -0.4], **options) == pytest.approx([0.3, -0.4])
    assert limited([3.0, -4.0], **options, clip_norm_type=1.0) == pytest.approx([3 / 7, -4 / 7])
    assert limited([3.0, -4.0], **options, clip_norm_type="inf") == pytest.approx([0.75, -1.0])


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_ignoring_by_value_and_norm(kind):
    options = {"kind": kind, "grad_ignore_type": "ignore_value", "ignore_value": 4.5}
    assert limited([3.0, -4.0], **options) == [3.0, -4.0]
    assert limited([3.0, -5.0], **options) == [0.0, 0.0]
    assert limited([3.0, float("nan")], **options) == [0.0, 0.0]
    limits = {name: value for name, value in options.items() if name != "kind"}
    kind([nn.Parameter(torch.zeros(1))], **limits).step()  # without gradients
    options["grad_ignore_type"] = "ignore_norm"
    assert limited([3.0, -4.0], **options) == [0.0, 0.0]
    assert limited([3.0, -3.0], **options) == [3.0, -3.0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"grad_clip_type": "clip"}, ValueError, "unknown grad_clip_type 'clip': use one of"),
        ({"grad_ignore_type": "clip_norm"}, ValueError, "unknown grad_ignore_type"),
        ({"grad_clip_type": "clip_norm"}, ValueError, "needs clip_value"),
        ({"clip_values": 3}, TypeError, "'clip_values'"),
    ],
)
def test_bad_options(options, error, message):
    for kind in (Adam, RMSprop):
        with pytest.raises(error, match=message):
            kind([nn.Parameter(torch.zeros(1))], **options)
    with pytest.raises(ValueError, match="unknown optim_type 'sgd'"):
        Adam([nn.Parameter(torch.zeros(1))], optim_type="sgd")


def test_conversions():
    pair = namedtuple("pair", "a b")
    data = {"obs": np.ones(2), "n": 3, "list": [1.5, None], "pair": pair(True, "text")}
    tensors = to_tensor(data, dtype=torch.float32)
    assert tensors["obs"].dtype == torch.float32
    assert (tensors["n"].item(), tensors["list"][1], tensors["pair"]) == (3, None, (True, "text"))
    arrays = to_ndarray(tensors)
    assert arrays["obs"].tolist() == [1, 1]
    assert isinstance(arrays["pair"], pair)
    assert to_device(tensors, "cpu")["obs"] is tensors["obs"]
