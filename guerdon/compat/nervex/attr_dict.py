"""`AttrDict`: a config with attribute access, ``cfg.learn.batch_size``."""

from collections.abc import Mapping
from typing import Any


class AttrDict(dict[str, Any]):
    """A dictionary whose keys are also attributes, recursively."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for key, value in self.items():
            if isinstance(value, Mapping) and not isinstance(value, AttrDict):
                self[key] = AttrDict(value)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(map(str, self)) or "none"
            raise AttributeError(f"there is no key {name!r} here; there are: {known}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value
