"""Reads the .npz files of arrays that demonstrations and preference segments were written to."""

import json
import pathlib
from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch, unflatten

FORMAT = "guerdon arrays"


def read_arrays(path: pathlib.Path) -> Batch:
    """Read a file of arrays; tensors come to the CPU, and nothing in the file is run."""
    with path.open("rb") as file:  # opened here: NumPy does not close a file that it cannot read
        try:
            with np.load(file, allow_pickle=False) as archive:
                content = json.loads(archive["meta"].tobytes())
                if content["format"] != FORMAT or content["version"] != 1:
                    raise ValueError("it is not a file of guerdon, or of a newer one")
                leaves = [
                    (tuple(leaf["path"]), _decode(leaf, archive)) for leaf in content["leaves"]
                ]
        except Exception as error:  # a damaged archive can fail in any way
            raise ValueError(f"{path} is damaged: {error}") from error
    return unflatten(dict(leaves))


def _decode(leaf: dict[str, Any], archive: Any) -> Any:
    match leaf["kind"]:
        case "array":
            return archive[leaf["entry"]]
        case "scalar":
            return archive[leaf["entry"]][()]
        case "tensor":
            dtype = getattr(torch, leaf["dtype"])
            return torch.from_numpy(archive[leaf["entry"]]).view(dtype)
        case "objects":
            # Not np.array, which would take lists apart.
            return np.fromiter(leaf["values"], object).reshape(leaf["shape"])
        case "batch":
            return Batch()
        case "value":
            return leaf["value"]
    raise ValueError(f"it holds a leaf of the unknown kind {leaf['kind']!r}")
