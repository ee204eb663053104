"""Sweeps: lists of values in ``guerdon train``, and ``guerdon sweep``."""

import hashlib
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from typer import Option

from guerdon.cli import common
from guerdon.startup import INTERRUPTED

COMMAND = (sys.executable, "-P", "-m", "guerdon")  # without the current folder, as `guerdon`
_PLOTTED = 10  # combinations in the plot, as many as there are colours
_POLL_SECONDS = 0.1
_NAME_LENGTH = 200  # of a folder; file systems allow 255


@dataclass(eq=False)
class Run:
    """A run of a sweep."""

    folder: Path
    changes: list[str]

    def summary(self) -> dict[str, Any] | None:
        """Return ``summary.json`` of a finished run; None for others."""
        from guerdon.training.run_folder import read_json

        found = read_json(self.folder / "summary.json") or {}
        return found if found.get("stop_reason", "interrupted") != "interrupted" else None

    def value(self, metric: str) -> float | None:
        """Return a number of the summary; None if the run has not finished."""
        from guerdon.config.errors import ConfigError, suggestion

        if (found := self.summary()) is None:
            return None
        value = found.get(metric, "")
        if not isinstance(value, int | float | None):
            numbers = [name for name in found if not isinstance(found[name], str)]
            raise ConfigError(
                f"{self.folder}/summary.json has no number {metric!r}: "
                f"{suggestion(metric, numbers)}"
            )
        return value

    def start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start or resume it in a process of a new session, which Ctrl-C does not interrupt."""
        from guerdon.config import as_overrides
        from guerdon.data.files import open_plain

        begun, folder = (self.folder / "config.yaml").exists(), str(self.folder)
        place = as_overrides({"run": {"dir": folder}})
        given = ["--resume", folder] if begun else [*arguments, *self.changes, *place]
        self.folder.mkdir(parents=True, exist_ok=True)
        with open_plain(self.folder / "output.txt", "ab") as output:
            return subprocess.Popen(
                [*COMMAND, "train", *given],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip


@dataclass(eq=False)
class Combination:
    """Values of the swept options other than the seed, and a run for each seed."""

    values: dict[str, str]
    runs: list[Run]
    trial: int | None = None

    def scores(self, metric: str) -> list[float]:
        """Return the metric of each finished run."""
        return [value for run in self.runs if (value := run.value(metric)) is not None]

    def row(self, scores: Sequence[float]) -> list[str]:
        """Return the cells of the table."""
        trial, n = [] if self.trial is None else [str(self.trial)], len(self.runs)
        runs = str(n) if len(scores) == n else f"{len(scores)} of {n}"
        mean = f"{statistics.fmean(scores):.4g}" if scores else "-"
        std = f"{statistics.stdev(scores):.4g}" if len(scores) > 1 else "-"
        return [*trial, *self.values.values(), runs, mean, std]


class Sweep:
    """Trains combinations of values in processes, and shows their results.

    Args:
        verb: The command: ``train`` or ``sweep``.
        arguments: Preset or file, and overrides.
        options: Further options of the command.
        folder: Folder of the sweep; None for a new one under ``runs/``.
        jobs: Number of runs at a time.
        metric: Number of ``summary.json`` to show.
    """

    def __init__(
        self,
        verb: str,
        arguments: Sequence[str],
        options: Sequence[str],
        folder: Path | None,
        jobs: int,
        metric: str,
    ) -> None:
        from guerdon.config.compose import parse

        source, overrides = common.split(arguments)
        parsed = {text: parse(text) for text in overrides}
        if any(each.key_or_group == "run.dir" for each in parsed.values()):
            raise ValueError("a sweep names the folders of its runs: use --sweep-dir, not run.dir")
        lists = {text: each for text, each in parsed.items() if each.is_sweep_override()}
        self.swept = {each.get_key_element(): each for each in lists.values()}
        seed = self.swept.pop("seed", None)
        self.seeds = [] if seed is None else values_of(seed)
        self.source, self.fixed = source, [text for text in overrides if text not in lists]
        self.combinations: list[Combination] = []
        self.folder = folder or Path()  # see `prepare`
        self.jobs, self.metric = jobs, metric
        self._new = folder is None
        self._given = ["guerdon", verb, *arguments, *options]

    @property
    def command(self) -> str:
        """The command that continues the sweep."""
        more = ["--sweep-dir", str(self.folder), "--jobs", str(self.jobs)]
        return shlex.join([*self._given, *more])

    def prepare(self, examples: Iterable[dict[str, str]], same: Any) -> None:
        """Check values of combinations, and the folder.

        Args:
            examples: Values of combinations.
            same: Arguments that cannot change when the sweep is continued.
        """
        from guerdon.data.files import check_plain
        from guerdon.entry import compose
        from guerdon.training.run_folder import make_folder, read_json, write_json

        for path in self.folder.glob("*"):
            check_plain(path)
        for values in examples:
            chosen = {**values, **({"seed": self.seeds[0]} if self.seeds else {})}
            compose(self.source, [*self.fixed, *_overrides(chosen)])
        if self._new:  # not before: a config that is wrong leaves nothing behind
            self.folder = make_folder(self.source or "sweep", "sweep")
        file = self.folder / "sweep.json"
        same = {"format": 1, "source": self.source, "overrides": self.fixed, "swept": same}
        if (read_json(file) or same) != same:
            raise ValueError(
                f"{self.folder} has a sweep with other arguments, listed in {file}: repeat them, "
                "or name another --sweep-dir"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(file, same)

    def add(self, values: dict[str, str], trial: int | None = None) -> Combination:
        """Add a combination; the folders of its runs have its values or its trial as names."""
        named, runs = values if trial is None else {"trial": str(trial)}, []
        for seed in [{"seed": seed} for seed in self.seeds] or [{}]:
            name = quote(",".join(_overrides(named | seed)), safe="=,+-.[]{}: ")
            if len(name) > _NAME_LENGTH:
                name = f"{name[:_NAME_LENGTH]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            runs.append(Run(self.folder / name, _overrides(values | seed)))
        self.combinations.append(Combination(values, runs, trial))
        return self.combinations[-1]

    def run(self, combinations: Iterator[Combination], options: Sequence[str] = ()) -> None:
        """Train combinations; on Ctrl-C, let the current runs save, and exit.

        Args:
            combinations: Taken as processes become free.
            options: Options of ``guerdon train``.
        """
        from guerdon.training.process import interrupts

        arguments = [*([self.source] if self.source else []), *self.fixed, *options]
        runs = (run for each in combinations for run in each.runs)
        running: dict[Run, subprocess.Popen[bytes]] = {}
        with interrupts() as interrupted:
            try:
                while True:
                    while len(running) < self.jobs and not interrupted():
                        if (run := next(runs, None)) is None:
                            break
                        if run.summary() is None:
                            running[run] = run.start(arguments)
                        self._mark(run, "started" if run in running else "skipped")
                    if not running:
                        break
                    stopping = interrupted()
                    for process in running.values() if stopping else ():
                        process.terminate()
                    for run, process in [*running.items()]:
                        with suppress(subprocess.TimeoutExpired):
                            code = process.wait(None if stopping else _POLL_SECONDS / len(running))
                            del running[run]
                            state = "finished" if not code else "failed"
                            self._mark(run, "interrupted" if stopping and code else state)
            finally:  # after a second Ctrl-C, or an error
                for process in running.values():
                    process.terminate()
            if interrupted():
                self._exit()

    def _mark(self, run: Run, state: str) -> None:
        """Print the state of a run."""
        found = run.value(self.metric)
        more = "" if found is None else f": {self.metric} {found:.4g}"
        if state == "failed":
            file = run.folder / "output.txt"
            lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
            more = f": {lines[-1] if lines else 'no output'} (see {file})"
        typer.echo(f"{state} {run.folder.name}{more}")

    def _exit(self) -> None:
        """Print what is saved and how to continue, and exit."""
        runs = [run for each in self.combinations for run in each.runs]
        others = [run for run in runs if run.summary() is None]
        saved = sum((run.folder / "checkpoints" / "latest").exists() for run in others)
        typer.echo(
            f"interrupted; {common.count(len(runs) - len(others), 'run')} in {self.folder} "
            f"finished, {saved} saved to be resumed; continue with: {self.command}"
        )
        raise typer.Exit(INTERRUPTED)

    def report(self) -> bool:
        """Show a table, the best first, and write a plot; return whether all runs finished."""
        from guerdon.config.errors import ConfigError
        from guerdon.extras import MissingExtraError
        from guerdon.lab import curves

        found = [(each, each.scores(self.metric)) for each in self.combinations]
        found.sort(key=lambda pair: -statistics.fmean(pair[1] or [-float("inf")]))
        trial = ["trial"] if any(each.trial is not None for each, _ in found) else []
        columns = [*trial, *self.swept, "runs", self.metric, "std over seeds"]
        common.show_table([each.row(scores) for each, scores in found], columns)
        best = [run for each, _ in found[:_PLOTTED] for run in each.runs]
        try:
            file = self.folder / "curves.png"
            curves.plot([run.folder for run in best if run.summary()], out=file)
            typer.echo(f"wrote {file}" + " of the best combinations" * (len(found) > _PLOTTED))
        except (MissingExtraError, ConfigError) as error:
            typer.echo(f"no plot: {error}")
        if failed := sum(len(each.runs) - len(scores) for each, scores in found):
            typer.echo(f"{common.count(failed, 'run')} failed; try again with: {self.command}")
        return not failed


def values_of(override: Any) -> list[str]:
    """Return the values of a list or range, as they are written in overrides."""
    if override.is_interval_sweep():
        raise ValueError(
            f"{override.input_line!r} has no list of values: use `guerdon sweep` to search an "
            f"interval, and lists for seeds"
        )
    texts = (text.replace("\\:", ":") for text in override.sweep_string_iterator())
    return list(dict.fromkeys(texts))


def _overrides(values: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def run_grid(
    arguments: Sequence[str], options: Sequence[str], folder: Path | None, jobs: int
) -> None:
    """Train every combination of comma lists, and show a table."""
    sweep = Sweep("train", arguments, options, folder, jobs, "eval_return_mean")
    lists = {key: values_of(each) for key, each in sweep.swept.items()}
    grid = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    sweep.prepare(grid, [*options, *lists])
    sweep.run(iter([sweep.add(values) for values in grid]), options)
    if not sweep.report():
        raise typer.Exit(1)


def search(
    arguments: common.Arguments,
    optimize: Annotated[
        str, Option(metavar="METRIC", help="Number of summary.json to maximize.")
    ] = "eval_return_mean",
    trials: Annotated[int, Option(metavar="INT", min=1, help="Number of trials.")] = 30,
    sweep_dir: common.SweepDir = None,
    jobs: common.Jobs = 1,
) -> None:
    """Search for the best values of options with Optuna.

    Searches lists (a,b,c), range(1,5), interval(0.9,0.999) and tag(log, interval(1e-4,1e-2)).
    With several seeds, each trial is trained with all of them, and its score is the mean.
    """
    from guerdon.extras import require

    optuna: Any = require("optuna", "sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    options = ["--optimize", optimize, "--trials", str(trials)]
    sweep = Sweep("sweep", arguments, options, sweep_dir, jobs, optimize)
    if not sweep.swept:
        raise ValueError("nothing to search: give several values, as in policy.gamma=0.9,0.99")
    kinds = optuna.distributions
    space = {key: _distribution(kinds, each) for key, each in sweep.swept.items()}
    example = {
        key: str(each.low if hasattr(each, "low") else each.choices[0])
        for key, each in space.items()
    }
    sweep.prepare([example], [optimize, *(each.input_line for each in sweep.swept.values())])
    study = _study(optuna, sweep.folder / "optuna.log", space)
    sweep.run(_trials(sweep, study, space, trials))
    _tell(sweep, study)
    sweep.report()
    try:
        best = study.best_trial
    except ValueError:  # all failed
        raise typer.Exit(1) from None
    values = _overrides(_values(best))
    seeds = [f"seed={','.join(sweep.seeds)}"] if sweep.seeds else []
    again = [*([sweep.source] if sweep.source else []), *sweep.fixed, *values, *seeds]
    typer.echo(
        f"best trial: {best.number}, {optimize} {best.value:.4g}; to train it again: "
        f"{shlex.join(['guerdon', 'train', *again])}"
    )


def _distribution(kinds: Any, override: Any) -> Any:
    """Return the values of an override as a distribution of Optuna."""
    if override.is_choice_sweep():
        return kinds.CategoricalDistribution(values_of(override))
    sweep = override.value()
    if override.is_interval_sweep():  # always of floats; `range` is for integers
        return kinds.FloatDistribution(sweep.start, sweep.end, log="log" in sweep.tags)
    whole = all(isinstance(x, int) for x in (sweep.start, sweep.stop, sweep.step))
    kind = kinds.IntDistribution if whole else kinds.FloatDistribution
    values = sorted(sweep.range())
    return kind(values[0], values[-1], step=abs(sweep.step))


def _study(optuna: Any, file: Path, space: dict[str, Any]) -> Any:
    """Return the study of a file, which others may have written."""
    from guerdon.limits import TEXT_BYTES, open_regular, read_bytes, reading

    with reading(file):
        if file.exists():  # a killed process may not have finished the last line
            whole = read_bytes(file, TEXT_BYTES).rfind(b"\n") + 1
            with open_regular(file, "r+b") as log:
                log.truncate(whole)
        backend = optuna.storages.journal.JournalFileBackend(str(file))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend), study_name="sweep",
            load_if_exists=True, direction="maximize",
        )  # fmt: skip
        for trial in study.trials:  # whose values become overrides
            if trial.distributions != space and not _is_partial(trial, space):
                raise ValueError("it has trials of other options")
            if trial.state.is_finished():
                format(trial.value, ".4g")
        if study.direction.name != "MAXIMIZE":
            raise ValueError("it does not maximize")
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))  # not the same draws again
    return study


def _is_partial(trial: Any, space: dict[str, Any]) -> bool:
    """Return whether the process was killed while it drew values."""
    drawn = trial.distributions.items() <= space.items() and len(trial.distributions) < len(space)
    return drawn and not trial.state.is_finished()


def _trials(sweep: Sweep, study: Any, space: dict[str, Any], number: int) -> Iterator[Combination]:
    """Yield trials: those that were interrupted or failed, then new ones."""
    from guerdon.limits import reading

    for trial in study.get_trials():
        if _is_partial(trial, space):
            continue
        combination = sweep.add(_values(trial), trial.number)
        if not trial.state.is_finished():
            yield combination
    while len(sweep.combinations) < number:
        _tell(sweep, study)
        with reading(sweep.folder / "optuna.log"):
            trial = study.ask(space)
        yield sweep.add(_values(trial), trial.number)


def _values(trial: Any) -> dict[str, str]:
    """Return the values of a trial, as they are written in overrides."""
    return {
        key: f"{value:.6g}" if isinstance(value, float) else str(value)
        for key, value in trial.params.items()
    }


def _tell(sweep: Sweep, study: Any) -> None:
    """Tell the study the results of finished trials; others are repeated in the next sweep."""
    states = {trial.number: trial.state for trial in study.get_trials(deepcopy=False)}
    for each in sweep.combinations:
        scores = [] if states[each.trial].is_finished() else each.scores(sweep.metric)
        if len(scores) == len(each.runs):
            study.tell(each.trial, statistics.fmean(scores))
