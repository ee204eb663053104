"""nerveX's ``config``: reading config files, and the environments that they name."""

from pathlib import Path
from typing import Any, NoReturn

from guerdon.compat.keys import Report
from guerdon.compat.nervex.envs import get_vec_env_setting, register_env
from guerdon.compat.stand_ins import stand_ins
from guerdon.config import ConfigError
from guerdon.config.imports import run_file

__all__ = ["Config", "get_vec_env_setting", "parallel_transform", "register_env"]


class Config:
    """The variables of a Python config file, by name."""

    def __init__(self, cfg_dict: dict[str, Any] | None = None, filename: str | None = None) -> None:
        self.cfg_dict, self.filename = cfg_dict or {}, filename

    @staticmethod
    def file_to_dict(filename: str) -> "Config":
        """Run a file, and return its variables."""
        with stand_ins(Report()):
            module = run_file(Path(filename))
        variables = {name: value for name, value in vars(module).items() if name[0] != "_"}
        return Config(variables, filename=filename)


def parallel_transform(cfg: Any, *hosts: Any, **options: Any) -> NoReturn:  # noqa: ARG001
    """Raise an error: the layout of the parallel mode is not read."""
    raise ConfigError("guerdon reads no parallel config: train a serial one with -m parallel")
