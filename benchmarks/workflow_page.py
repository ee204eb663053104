"""The page of `workflow.py`; its numbers are those of the results."""

from __future__ import annotations

from statistics import median
from typing import Any

BUSY = 0.5
"""Load average per core, before the start, above which figures are rough."""
FRAMES_GOAL, LOADING_GOAL = 50_000, 20
EPOCHS = (1, 6, 100)
"""Epochs of fits with which loading is compared: one, the preset's, and RLinf's."""
TITLES = {
    "plain": "plain loop, `.npy`",
    "npy": "guerdon, `.npy`",
    "npz": "guerdon, `.npz`",
    "augmented": "guerdon, `.npz`, augmented",
}

_HEAD = """# Speed of the reward workflow

Written by `python benchmarks/workflow.py` (`make bench`) from `benchmarks/results/workflow.json`;
one thread, medians of interleaved rounds. {machine}
"""
_TABLES = """
## The tabletop

{n_envs} environments with random actions: states, images of 64x64 pixels, and resets.

| | frames/s | best round | goal |
|---|---:|---:|---:|
"""
_LOADING = """
## Loading frames

{frames:,} frames, {trajectories} trajectories of Reach, in batches of {batch_size}. The plain loop
is a PyTorch `Dataset` over pickled dictionaries of float32, which reads a whole trajectory for each
frame, and a `DataLoader` without workers. guerdon reads all files once, keeps uint8 images in
memory, and samples balanced batches. Files are in the system's cache, which is the best case for
the plain loop. In brackets: the speed relative to the plain loop. The goal, {goal} times including
reading, is met {met}.

| | reading, s | batches of an epoch, s | frames/s |{columns}
|---|---:|---:|---:|{lines}
"""
_FIT = """
## A whole fit

{steps} steps of {batch_size} frames with the same classifier (ResNet-10 of width 16), AdamW and
clipped gradients in both; only the last row augments images. guerdon's seconds include validation
and a checkpoint, which the plain loop does not have. *Faster by* is the difference from the plain
loop, with and without validation; the goal is the difference in loading time.

| | seconds | of which loading | of which validation | faster by, s | without validation | goal, s |
|---|---:|---:|---:|---:|---:|---:|
"""
_RUNS = """
## Training

`reach_ppo` for {steps:,} steps, without evaluations. Collecting includes writing all trajectories
to disk; a trajectory of 50 images takes {npz:,.0f} bytes as `npz`, and {npy:,.0f} as `npy`.
`reward=classifier` uses the classifier of the fit above.

| | steps/s | relative time |
|---|---:|---:|
"""
_DOING = {
    "env": "environment reward",
    "npz": "environment reward, collecting `npz`",
    "npy": "environment reward, collecting `npy`",
    "classifier": "`reward=classifier`",
}


def page(result: dict[str, Any]) -> str:
    """Return the page of the results of `workflow.py`."""
    parts = (_head, _tables, _loading, _fit, _runs)
    return "".join(part(result) for part in parts)


def _head(result: dict[str, Any]) -> str:
    facts = result["machine"]
    versions = ", ".join(f"{name} {facts['packages'][name]}" for name in ("numpy", "torch"))
    machine = f"{facts['date'][:10]}; {facts['cpu']}, {facts['cores']} cores; {versions}."
    if facts["load_before"] > BUSY:
        machine += (
            f"\n**The machine was busy at the start (load {facts['load_before']:.1f} per core): "
            "the figures are rough.**"
        )
    return _HEAD.format(machine=machine)


def _tables(result: dict[str, Any]) -> str:
    lines = [
        f"| `{name}` | {median(speeds):,.0f} | {max(speeds):,.0f} | "
        f"{FRAMES_GOAL:,}, {_met(median(speeds) >= FRAMES_GOAL)} |\n"
        for name, speeds in result["tabletop"].items()
    ]
    return _TABLES.format(**result["settings"]) + "".join(lines)


def _loading(result: dict[str, Any]) -> str:
    settings, loading = result["settings"], result["loading"]
    columns = "".join(f" {_epochs(number)} and reading |" for number in EPOCHS)
    own = [name for name in loading if name != "plain"]
    text = _LOADING.format(
        **settings,
        goal=LOADING_GOAL,
        met=" and ".join(f"{_met_from(loading, name)} (`.{name}`)" for name in own),
        columns=columns,
        lines="---:|" * len(EPOCHS),
    )
    for name, rounds in loading.items():
        reading, batches = (median(each[part] for each in rounds) for part in rounds[0])
        cells = [f"{reading:.2f}", f"{batches:.2f}"]
        cells.append(f"{settings['frames'] / batches:,.0f}{_times(loading, name, None)}")
        cells += [
            f"{settings['frames'] * number / (reading + number * batches):,.0f}"
            f"{_times(loading, name, number)}"
            for number in EPOCHS
        ]
        text += f"| {TITLES[name]} | {' | '.join(cells)} |\n"
    return text


def _times(loading: dict[str, Any], name: str, epochs: int | None) -> str:
    """Return the speed relative to the plain loop, in brackets; None for batches alone."""
    return "" if name == "plain" else f" ({speedup(loading, name, epochs):.1f}x)"


def speedup(loading: dict[str, Any], name: str, epochs: int | None) -> float:
    """Return the speed of loading relative to the plain loop, the median of rounds.

    Args:
        loading: Seconds of reading and of the batches of an epoch, by name and round.
        name: What to compare.
        epochs: Epochs of a fit, including reading; None for batches alone.
    """

    def seconds(each: dict[str, float]) -> float:
        return each["batches"] if epochs is None else each["reading"] + epochs * each["batches"]

    pairs = zip(loading["plain"], loading[name], strict=True)
    return median(seconds(plain) / seconds(own) for plain, own in pairs)


def _met_from(loading: dict[str, Any], name: str) -> str:
    """Return the number of epochs from which on the goal is met, in words."""
    for epochs in range(1, EPOCHS[-1] + 1):
        if speedup(loading, name, epochs) >= LOADING_GOAL:
            return f"from {epochs} epochs on" if epochs > 1 else "from the first epoch on"
    return "never"


def _fit(result: dict[str, Any]) -> str:
    text = _FIT.format(**result["settings"])
    plain = result["fit"]["plain"]
    for name, rounds in result["fit"].items():
        cells = [
            f"{median(each.get(part, 0.0) for each in rounds):.2f}"
            for part in ("seconds", "loading", "validating")
        ]
        if name == "plain":
            cells += ["", "", ""]
        else:
            pairs = list(zip(plain, rounds, strict=True))
            faster = median(a["seconds"] - b["seconds"] for a, b in pairs)
            alike = median(a["seconds"] - b["seconds"] + b["validating"] for a, b in pairs)
            wanted = median(a["loading"] - b["loading"] for a, b in pairs)
            cells += [f"{faster:.2f}", f"{alike:.2f}", f"{wanted:.2f}, {_met(alike >= wanted)}"]
        text += f"| {TITLES[name]} | {' | '.join(cells)} |\n"
    return text


def _runs(result: dict[str, Any]) -> str:
    runs, sizes = result["runs"], result["bytes"]
    text = _RUNS.format(steps=result["settings"]["run_steps"], **sizes)
    for name, said in _DOING.items():
        longer = median(a / b for a, b in zip(runs["env"], runs[name], strict=True))
        text += f"| {said} | {median(runs[name]):,.0f} | {longer:.2f} |\n"
    return text


def _epochs(number: int) -> str:
    return "1 epoch" if number == 1 else f"{number} epochs"


def _met(reached: bool) -> str:
    return "met" if reached else "not met"
