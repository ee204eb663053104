"""Rounding: comparisons of floats, and a test with the rounding of another processor."""

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

TOLERANCES = {np.float16: (1e-3, 1e-3), np.float32: (1e-5, 1e-6), np.float64: (1e-9, 1e-12)}
"""Relative and absolute."""


def _array(value):
    return value.detach().cpu().numpy() if torch.is_tensor(value) else np.asarray(value)


def assert_close(actual, expected, *, rtol=None, atol=None, err_msg=""):
    """Compare results of different computations, with the tolerances of the less exact type."""
    arrays = _array(actual), _array(expected)
    tolerances = [TOLERANCES.get(array.dtype.type, (0.0, 0.0)) for array in arrays]
    relative, absolute = map(max, zip(*tolerances, strict=True))
    np.testing.assert_allclose(
        *arrays,
        rtol=relative if rtol is None else rtol,
        atol=absolute if atol is None else atol,
        err_msg=err_msg,
    )


ROUNDED = {
    "linear", "conv2d", "baddbmm", "matmul", "__matmul__", "sum", "mean", "std", "var", "norm",
    "exp", "log", "log1p", "expm1", "tanh", "atanh", "sigmoid", "softplus", "logsigmoid",
    "softmax", "log_softmax", "logsumexp",
}  # fmt: skip
"""Functions whose kernels round differently on other processors."""


class OtherRounding(TorchFunctionMode):
    """Change the last bit of a part of the results of `ROUNDED`.

    As with the kernels of another processor, a computation gives the same floats whenever it is
    repeated, but a row can give others in a batch of another size. Numbers of a few bits are exact
    everywhere.
    """

    def __init__(self, seed=0):
        super().__init__()
        self.seed = seed

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name not in ROUNDED or not torch.is_tensor(out) or not out.is_floating_point():
            return out
        with torch.no_grad():
            size = out.numel()
            numbers = torch.arange(size, device=out.device) + self.seed + size
            steps = (numbers * 7919 % 1009 % 3 - 1).reshape(out.shape)
            exact = out * 1024 == (out * 1024).round()
            factor = 1 + torch.finfo(out.dtype).eps * torch.where(exact, 0, steps).to(out.dtype)
        return out * factor
