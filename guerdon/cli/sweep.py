"""Many runs: comma lists of ``guerdon train``, and ``guerdon sweep``."""

import hashlib
import json
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

COMMAND = (sys.executable, "-P", "-m", "guerdon")  # without the current folder, as `guerdon`
_PLOTTED = 10  # settings in the plot, as many as there are colours
_POLL_SECONDS = 0.1
_NAME = 200  # characters of a folder's name; file systems allow 255


@dataclass(eq=False)
class Run:
    """A run of a sweep."""

    folder: Path
    changes: list[str]
    ended: bool = False  # finished or failed

    def summary(self) -> dict[str, Any] | None:
        """Return ``summary.json`` of a finished run; None for others."""
        file = self.folder / "summary.json"
        found: dict[str, Any] = json.loads(file.read_bytes()) if file.is_file() else {}
        return found if found.get("stop_reason", "interrupted") != "interrupted" else None

    def value(self, metric: str) -> float | None:
        """Return a number of the summary; None if there is none."""
        from guerdon.config.errors import ConfigError, suggestion

        found = self.summary()
        if found is not None and metric not in found:
            raise ConfigError(
                f"{self.folder}/summary.json: no {metric!r}; {suggestion(metric, found)}"
            )
        value = None if found is None else found[metric]
        if not isinstance(value, int | float | None):
            raise ConfigError(f"{metric!r} of {self.folder}/summary.json is {value!r}, no number")
        return value

    def start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start or resume it in a process, which a Ctrl-C in the terminal does not reach."""
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
class Setting:
    """Values of the swept options other than the seed, and a run for each seed."""

    values: dict[str, str]
    runs: list[Run]
    trial: int | None = None

    def scores(self, metric: str) -> list[float]:
        """Return the metric of each finished run."""
        return [value for run in self.runs if (value := run.value(metric)) is not None]


class Sweep:
    """Runs settings in processes, and shows what came out.

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
        from guerdon.training.run_folder import default_path

        source, overrides = common.split(arguments)
        parsed = {text: parse(text) for text in overrides}
        if any(each.key_or_group == "run.dir" for each in parsed.values()):
            raise ValueError("a sweep names the folders of its runs: use --sweep-dir, not run.dir")
        lists = {text: each for text, each in parsed.items() if each.is_sweep_override()}
        self.swept = {each.get_key_element(): each for each in lists.values()}
        seed = self.swept.pop("seed", None)
        self.seeds = [] if seed is None else values_of(seed)
        self.source, self.fixed = source, [text for text in overrides if text not in lists]
        self.settings: list[Setting] = []
        self.folder = folder or default_path(source or "sweep", "sweep")
        self.jobs, self.metric = jobs, metric
        given = [*arguments, *options, "--sweep-dir", str(self.folder), "--jobs", str(jobs)]
        self.command = shlex.join(["guerdon", verb, *given])

    def prepare(self, examples: Iterable[dict[str, str]], same: Any) -> None:
        """Check values of settings, and the folder.

        Args:
            examples: Values of settings.
            same: What cannot change when the sweep is continued.
        """
        from guerdon.data.files import check_plain
        from guerdon.entry import compose
        from guerdon.training.run_folder import write_json

        for path in self.folder.glob("*"):
            check_plain(path)
        for values in examples:
            chosen = {**values, **({"seed": self.seeds[0]} if self.seeds else {})}
            compose(self.source, [*self.fixed, *_overrides(chosen)])
        file = self.folder / "sweep.json"
        same = {"format": 1, "source": self.source, "overrides": self.fixed, "swept": same}
        if file.exists() and json.loads(file.read_bytes()) != same:
            raise ValueError(
                f"{self.folder} has a sweep with other arguments, listed in {file}: repeat them, "
                "or name another --sweep-dir"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(file, same)

    def add(self, values: dict[str, str], trial: int | None = None) -> Setting:
        """Add a setting, with runs in folders that are named after its values, or its trial."""
        named, runs = values if trial is None else {"trial": str(trial)}, []
        for seed in [{"seed": seed} for seed in self.seeds] or [{}]:
            name = quote(",".join(_overrides(named | seed)), safe="=,+-.[]{}: ")
            if len(name) > _NAME:
                name = f"{name[:_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            runs.append(Run(self.folder / name, _overrides(values | seed)))
        self.settings.append(Setting(values, runs, trial))
        return self.settings[-1]

    def run(self, settings: Iterator[Setting], options: Sequence[str] = ()) -> None:
        """Run settings; on Ctrl-C, let the running ones save, and exit.

        Args:
            settings: Taken as processes become free.
            options: Options of ``guerdon train``.
        """
        from guerdon.training.process import interrupts

        arguments = [*([self.source] if self.source else []), *self.fixed, *options]
        runs = (run for setting in settings for run in setting.runs)
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
            finally:  # of a second Ctrl-C, or an error
                for process in running.values():
                    process.terminate()
            if interrupted():
                self._exit()

    def _mark(self, run: Run, state: str) -> None:
        """Record and print the state of a run."""
        found = run.value(self.metric)
        more = "" if found is None else f": {self.metric} {found:.4g}"
        if state == "failed":
            file = run.folder / "output.txt"
            lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
            more = f": {lines[-1] if lines else 'no output'} (see {file})"
        run.ended = state in ("finished", "skipped", "failed")
        typer.echo(f"{state} {run.folder.name}{more}")

    def _exit(self) -> None:
        """Print what is saved and how to continue, and exit."""
        runs = [run for setting in self.settings for run in setting.runs]
        finished = {run for run in runs if run.summary() is not None}
        saved = [run for run in runs if (run.folder / "checkpoints" / "latest").exists()]
        typer.echo(
            f"interrupted; {common.count(len(finished), 'run')} in {self.folder} finished, "
            f"{len({*saved} - finished)} saved to be resumed; continue with: {self.command}"
        )
        raise typer.Exit(common.INTERRUPTED)

    def report(self) -> bool:
        """Show a table and write a plot, the best settings first; return whether all finished."""
        from guerdon.config.errors import ConfigError
        from guerdon.extras import MissingExtraError
        from guerdon.lab import curves

        rows, failed = list[tuple[float, Setting, list[str]]](), 0
        for setting in self.settings:
            scores, n = setting.scores(self.metric), len(setting.runs)
            failed += n - len(scores)
            mean = statistics.fmean(scores) if scores else -float("inf")
            texts = [f"{mean:.4g}" if scores else "-"]
            texts += [f"{statistics.stdev(scores):.4g}" if len(scores) > 1 else "-"]
            texts.insert(0, str(n) if len(scores) == n else f"{len(scores)} of {n}")
            name = [] if setting.trial is None else [str(setting.trial)]
            rows.append((mean, setting, [*name, *setting.values.values(), *texts]))
        rows.sort(key=lambda row: -row[0])
        first = ["trial"] if self.settings and self.settings[0].trial is not None else []
        columns = [*first, *self.swept, "runs", self.metric, "std over seeds"]
        common.show_table([texts for *_, texts in rows], columns)
        best = [setting for _, setting, _ in rows][:_PLOTTED]
        runs = [run.folder for setting in best for run in setting.runs if run.summary()]
        try:
            if not runs:
                raise ConfigError("no run finished")
            file = self.folder / "curves.png"
            curves.plot(runs, out=file)
            typer.echo(f"wrote {file}" + " of the best settings" * (len(rows) > _PLOTTED))
        except (MissingExtraError, ConfigError) as error:
            typer.echo(f"no plot: {error}")
        if failed:
            again = "" if first else f"; try again with: {self.command}"
            typer.echo(f"{common.count(failed, 'run')} failed{again}")
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
    settings = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    sweep.prepare(settings, [*options, *lists])
    sweep.run(iter([sweep.add(values) for values in settings]), options)
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
    With several seeds, each trial trains with all of them, and their mean counts.
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
    first = {
        key: str(each.low if hasattr(each, "low") else each.choices[0])
        for key, each in space.items()
    }
    sweep.prepare([first], [optimize, *(each.input_line for each in sweep.swept.values())])
    file = optuna.storages.journal.JournalFileBackend(str(sweep.folder / "optuna.log"))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(file), study_name="sweep", load_if_exists=True,
        direction="maximize",
    )  # fmt: skip
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))  # no draws twice
    sweep.run(_trials(sweep, study, space, trials))
    _tell(sweep, study)
    sweep.report()
    try:
        best = study.best_trial
    except ValueError:
        raise typer.Exit(1) from None  # all failed
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


def _trials(sweep: Sweep, study: Any, space: dict[str, Any], number: int) -> Iterator[Setting]:
    """Yield the settings of trials: those that were interrupted, then new ones."""
    for trial in study.get_trials():
        setting = sweep.add(_values(trial), trial.number)
        if not trial.state.is_finished():
            yield setting
    while len(sweep.settings) < number:
        _tell(sweep, study)
        trial = study.ask(space)
        yield sweep.add(_values(trial), trial.number)


def _values(trial: Any) -> dict[str, str]:
    """Return the values of a trial, as they are written in overrides."""
    return {
        key: f"{value:.6g}" if isinstance(value, float) else str(value)
        for key, value in trial.params.items()
    }


def _tell(sweep: Sweep, study: Any) -> None:
    """Tell the study the results of trials whose runs have all ended."""
    states = {trial.number: trial.state for trial in study.get_trials(deepcopy=False)}
    for setting in sweep.settings:
        state = states[setting.trial]
        if not state.is_finished() and all(run.ended for run in setting.runs):
            scores = setting.scores(sweep.metric)
            if len(scores) == len(setting.runs):
                study.tell(setting.trial, statistics.fmean(scores))
            else:
                study.tell(setting.trial, state=type(state).FAIL)
