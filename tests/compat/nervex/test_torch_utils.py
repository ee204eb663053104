"""Optimizers with limits on gradients, and conversions of data."""

import copy
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from guerdon.compat.nervex.torch_utils import Adam, RMSprop, to_device, to_ndarray, to_tensor

T = torch.tensor


def limited(gradient, kind=Adam, steps=(), **options):
    """Return the gradients that a step uses, after steps with others."""
    parameter = nn.Parameter(torch.zeros(len(gradient)))
    optimizer = kind([parameter], lr=0.0, **options)
    for each in (*steps, gradient):
        parameter.grad = T(each, dtype=torch.float32)
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


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_ignoring_by_value_and_norm(kind):
    options = {"kind": kind, "grad_ignore_type": "ignore_value", "ignore_value": 4.5}
    assert limited([3.0, -4.0], **options) == [3.0, -4.0]
    assert limited([3.0, -5.0], **options) == [0.0, 0.0]
    assert limited([3.0, float("nan")], **options) == [0.0, 0.0]
    options["grad_ignore_type"] = "ignore_norm"
    assert limited([3.0, -4.0], **options) == [0.0, 0.0]
    assert limited([3.0, -3.0], **options) == [3.0, -3.0]


@pytest.mark.parametrize(("kind", "rate"), [(Adam, 0.999), (RMSprop, 0.99)])
def test_limits_by_the_moving_mean_of_squares(kind, rate):
    steps, late = [[1.0, 1.0]] * 3, 10.0
    mean = [np.array([1.0, 1.0])] * 3 + [np.array([late, 1.0])]
    square = np.zeros(2)
    for each in mean:
        square = rate * square + (1 - rate) * each**2
    root = np.sqrt(square / (1 - rate**4 if kind is Adam else 1.0))
    options = {"kind": kind, "clip_coef": 1.5, "clip_momentum_timestep": 3}
    bound = 1.5 * root
    clipped = limited([late, 1.0], steps=steps, grad_clip_type="clip_momentum", **options)
    assert clipped == pytest.approx(np.minimum([late, 1.0], bound).tolist(), rel=1e-4)
    clipped = limited([late, 1.0], steps=steps, grad_clip_type="clip_momentum_norm", **options)
    share = min(1.0, np.linalg.norm(bound) / np.hypot(late, 1.0))
    assert clipped == pytest.approx([late * share, share], rel=1e-4)
    for name in ("ignore_momentum", "ignore_momentum_norm"):
        options = {"kind": kind, "grad_ignore_type": name, "ignore_coef": 1.5}
        gone = limited([late, 1.0], steps=steps, ignore_momentum_timestep=3, **options)
        assert gone == [0.0, 0.0]
        early = limited([late, 1.0], steps=steps, ignore_momentum_timestep=4, **options)
        assert early == [late, 1.0]


def test_norms_of_moving_means_are_of_each_group():
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = [{"params": [first]}, {"params": [second]}]
    options = {"grad_ignore_type": "ignore_momentum_norm", "ignore_momentum_timestep": 1}
    optimizer = Adam(groups, lr=0.0, ignore_coef=1.0, **options)
    for gradients in ((1.0, 1.0), (50.0, 1.0)):
        first.grad, second.grad = T([gradients[0]]), T([gradients[1]])
        optimizer.step()
    assert (first.grad.item(), second.grad.item()) == (0.0, 1.0)


def test_moving_means_are_saved_with_the_optimizer():
    def stepped(optimizer, parameter, gradients):
        for gradient in gradients:
            parameter.grad = T([gradient])
            optimizer.step()
        return parameter.grad.item()

    options = {"grad_clip_type": "clip_momentum", "clip_momentum_timestep": 1, "clip_coef": 1.0}
    one, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    first = Adam([one], **options)
    stepped(first, one, [1.0, 2.0, 3.0])
    second = Adam([other], **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert stepped(first, one, [9.0]) == stepped(second, other, [9.0]) < 9.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"grad_clip_type": "clip"}, ValueError, "unknown grad_clip_type 'clip': use one of"),
        ({"grad_ignore_type": "clip_norm"}, ValueError, "unknown grad_ignore_type"),
        ({"grad_clip_type": "clip_norm"}, ValueError, "needs clip_value"),
        ({"clip_values": 3}, TypeError, "unknown option 'clip_values'"),
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
