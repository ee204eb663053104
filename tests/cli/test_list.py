"""``guerdon list``: tables for people, JSON for programs."""

import json

import pytest
import typer
from typer.testing import CliRunner

from guerdon.cli.info import list_options
from guerdon.config import registry_of, sources

app = typer.Typer()
app.command()(list_options)


def listed(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return {row["name"] or row["id"]: row for row in json.loads(result.output)}


@pytest.mark.parametrize(("kind", "singular"), [("policies", "policy"), ("rewards", "reward")])
def test_registered_classes_are_listed_with_what_they_are(kind, singular):
    rows = listed(kind)
    assert list(rows) == registry_of(singular).names()
    assert all(row["description"] for row in rows.values())


def test_presets_are_listed_with_their_parts():
    rows = listed("presets")
    assert list(rows) == sources.options("preset")
    assert rows["cartpole_ppo"] == {
        "name": "cartpole_ppo",
        "reward": "env",
        "env": "cartpole",
        "policy": "ppo",
    }


def test_environments_are_those_of_the_zoo_or_all():
    rows = listed("envs")
    assert rows["cartpole"] == {"name": "cartpole", "id": "CartPole-v1"}
    assert list(rows) == sources.options("env")
    assert {"cartpole", "Acrobot-v1", "MountainCarContinuous-v0"} <= listed("envs", "--all").keys()


def test_fits_are_listed_with_what_they_look_at():
    rows = listed("fits")
    assert list(rows) == sources.options("fit")
    assert rows["reach_classifier"] == {
        "name": "reach_classifier",
        "cameras": "base_camera",
        "width": "16",
        "epochs": "auto",
    }


def test_people_see_a_table():
    result = CliRunner().invoke(app, ["rewards"])
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert lines[0] == ["name", "description"]
    assert [line[0] for line in lines if line[0] in ("constant", "env", "function")] == [
        "constant",
        "env",
        "function",
    ]


def test_what_cannot_be_listed_is_refused():
    result = CliRunner().invoke(app, ["cats"])
    assert result.exit_code == 2
    assert "policies" in result.output
