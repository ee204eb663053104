"""`AttrDict`: a config that is read as ``cfg.learn.batch_size``."""

from collections.abc import Mapping
from typing import Any


class AttrDict(dict[str, Any]):
    """A dictionary whose keys are attributes, too; so are those of dictionaries in it."""

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
