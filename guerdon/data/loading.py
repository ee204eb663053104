"""Reading demonstrations, whatever wrote them."""

import os
import pathlib
from typing import Any

from guerdon.data.demonstrations import Demonstrations, load_folder
from guerdon.data.files import set_aside
from guerdon.data.minari import from_minari, is_minari_folder
from guerdon.data.transitions import read_transitions

ZOO = pathlib.Path(__file__).parents[1] / "zoo" / "demonstrations"


def load_demonstrations(source: Any) -> Demonstrations:
    """Reads demonstrations.

    From a folder, obs and obs_next of an episode may be views on one array: copy before you write.
    For pickled files see `read_transitions`.

    Args:
        source: A folder that `save_demonstrations` wrote; ``"zoo:<name>"`` for one that comes with
            guerdon; a ``.pkl`` or ``.pickle`` file; a Minari dataset, as
            ``"minari:<dataset id>"``, as its folder, or as the object itself.
    """
    if not isinstance(source, str | os.PathLike):
        return from_minari(source)
    if str(source).startswith("minari:"):
        return from_minari(str(source).removeprefix("minari:"))
    if str(source).startswith("expert:"):
        raise ValueError(
            f"{source!r} is made by training: name it in a run's config, or read the folder that "
            "guerdon.training.experts.expert_folder gives"
        )
    path = pathlib.Path(source)
    if str(source).startswith("zoo:"):
        path = ZOO / str(source).removeprefix("zoo:")
        if not path.exists():
            held = ", ".join(sorted(each.name for each in ZOO.iterdir()))
            raise FileNotFoundError(
                f"no demonstrations {source!r} come with guerdon; it has {held}"
            )
    if not path.exists() and not set_aside(path).exists():
        raise FileNotFoundError(f"there are no demonstrations at {path}")
    if path.is_file():
        if path.suffix in (".pkl", ".pickle"):
            return Demonstrations(read_transitions(path))
        raise ValueError(f"{path} is no folder of demonstrations and no .pkl file")
    if is_minari_folder(path):
        return from_minari(path)
    return load_folder(path)
