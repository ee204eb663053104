"""Arguments, options and output of several commands."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from typer import Argument, Option

if TYPE_CHECKING:
    from guerdon.training.replay import Checkpoint

SOURCE = "PRESET|FILE|KEY=VALUE"


def complete(incomplete: str) -> list[str]:
    """Complete presets and overrides, for shells."""
    presets = (Path(__file__).parents[1] / "zoo" / "preset").glob("*.yaml")
    words = [*sorted(path.stem for path in presets), "env=", "policy=", "reward=", "seed="]
    return [word for word in words if word.startswith(incomplete)]


Arguments = Annotated[
    list[str],
    Argument(metavar=SOURCE, help="Preset or file, and overrides.", autocompletion=complete),
]
Platform = Literal["local", "slurm", "k8s"]
Run = Annotated[Path, Argument(metavar="RUN", help="Run directory.")]
Seed = Annotated[int, Option(metavar="INT", min=0, help="Random seed.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
Display = Annotated[
    Literal["auto", "live", "lines", "none"], Option(help="auto: live on a terminal, else lines.")
]
Trust = Annotated[bool, Option("--trust", help="Run the code that a run of another user names.")]
SweepDir = Annotated[
    Path | None,
    Option(metavar="DIR", help="Folder of a sweep; name it again to continue. Default: new."),
]
Jobs = Annotated[int, Option(metavar="INT", min=1, help="Runs of a sweep at a time.")]
Checkpoints = Annotated[
    str, Option("--checkpoint", metavar="best|latest|STEP,...", help="Policies of the run.")
]
Noise = Annotated[
    str | None,
    Option(metavar="P,P,...", help="Probabilities of a random action, each played: 0,0.25,0.5"),
]


def split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split arguments into the preset or file, and the overrides."""
    sources = [each for each in arguments if not re.match(r"~|[+]{0,2}[\w.]+=", each)]
    if len(sources) > 1:
        raise ValueError(
            f"give one preset or file, not {' and '.join(map(repr, sources))}; overrides are "
            f"written as KEY=VALUE"
        )
    return sources[0] if sources else None, [each for each in arguments if each not in sources]


def checkpoint_of(text: str) -> "Checkpoint":
    """Parse ``best``, ``latest`` or a number of steps."""
    if text in ("best", "latest"):
        return cast("Checkpoint", text)
    digits = text.removeprefix("step_")
    if not digits.isdecimal():
        raise ValueError(f"a checkpoint is 'best', 'latest' or a number of steps, not {text!r}")
    return int(digits)


def noise_levels(text: str | None) -> list[float]:
    """Parse the probabilities of ``--noise``."""
    try:
        levels = [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        levels = [-1.0]
    if not all(0 <= level <= 1 for level in levels):
        raise ValueError(
            f"--noise takes probabilities between 0 and 1, as in 0,0.25,0.5, not {text!r}"
        )
    return levels


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 run``, ``2 runs``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


@contextmanager
def progress(**totals: int | None) -> Iterator[Callable[..., None]]:
    """Show bars on a terminal; yield a function that takes a bar's name, value and total."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, transient=True, console=console, disable=not console.is_terminal
    ) as bar:
        tasks = {name: bar.add_task(name, total=total) for name, total in totals.items()}

        def update(name: str, value: int, total: int | None = None) -> None:
            bar.update(tasks[name], completed=value, total=total)

        yield update


def show_table(
    rows: Iterable[Sequence[str]],
    columns: Sequence[str] = ("", ""),
    justify: Literal["left", "right"] = "right",
) -> None:
    """Print a table; the first column is on the left."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for number, name in enumerate(columns):
        table.add_column(Text(name), justify=justify if number else "left")
    for row in rows:
        table.add_row(*map(Text, row))  # not markup
    Console().print(table)
