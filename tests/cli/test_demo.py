"""``guerdon demo`` on the real environment."""

import re

import pytest
from typer.testing import CliRunner

from guerdon.cli import app


@pytest.mark.parametrize("n_envs", [1, 3])
def test_the_demo_shows_a_sampled_batch(n_envs):
    result = CliRunner().invoke(app, ["demo", "--steps", "150", "--n-envs", str(n_envs)])
    assert result.exit_code == 0, result.output
    found = re.search(r"([\d,]+) transitions of ([\d,]+) episodes", result.output)
    transitions, episodes = (int(number.replace(",", "")) for number in found.groups())
    # A random policy balances the pole for some twenty steps; each reset costs a step.
    assert episodes >= 150 * n_envs / 60
    assert 150 * n_envs - episodes <= transitions <= 150 * n_envs
    assert "obs_next: array(" in result.output
    assert "four segments of eight steps" in result.output
