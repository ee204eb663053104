"""Reads .npz files of arrays, an older format of demonstrations and preference segments."""

import json
import pathlib
from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch, unflatten

FORMAT = "guerdon arrays"


def read_arrays(path: pathlib.Path) -> Batch:
    """Read a file of arrays; tensors are loaded to the CPU, and no code in the file is run."""
    with path.open("rb") as file:  # NumPy leaves an unreadable file open
        try:
            with np.load(file, allow_pickle=False) as archive:
                content = json.loads(archive["meta"].tobytes())
                if content["format"] != FORMAT or content["version"] != 1:
                    raise ValueError("it was not written by guerdon, or by a newer version")
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
            # np.array would split lists into elements.
            return np.fromiter(leaf["values"], object).reshape(leaf["shape"])
        case "batch":
            return Batch()
        case "value":
            return leaf["value"]
    raise ValueError(f"it has a leaf of unknown kind {leaf['kind']!r}")
