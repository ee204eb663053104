"""``guerdon reward probe``: what a reward gives to good and bad behaviour."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from guerdon.cli.common import Arguments, AsJson, show_table, split

COLUMNS = ("", "a step", "an episode", "lowest", "highest", "length", "true return")


def probe(
    arguments: Arguments,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each kind.")] = 10,
    steps: Annotated[int, typer.Option(min=0, help="Transitions to train the reward on.")] = 5_000,
    as_json: AsJson = False,
) -> None:
    """Shows the reward of good and bad behaviour, before any policy learns from it."""
    from guerdon.config import explain
    from guerdon.entry import compose
    from guerdon.training.probe import probe as probed

    config = compose(*split(arguments))
    found = probed(config, episodes=episodes, steps=steps, display="none" if as_json else "auto")
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    typer.echo(explain(config))
    rows = []
    for row in found.rows:
        values = (row.per_step, row.per_episode, row.lowest, row.highest)
        texts = [f"{value:.3f}" for value in values]
        rows.append([row.name, *texts, f"{row.length:.1f}", f"{row.true_return:.1f}"])
    show_table(rows, COLUMNS)
    typer.echo(f"{found.ranking}\n{found.verdict}")
