"""``guerdon explain``: the reward pipeline of a preset, a file or an environment."""

import pytest
import typer
from typer.testing import CliRunner

from guerdon.cli.info import explain
from guerdon.config import compose

app = typer.Typer()
app.command()(explain)


@pytest.mark.parametrize(
    ("arguments", "line"),  # with * for the sign of multiplication
    [
        (["cartpole_ppo"], "env*1 → GAE"),
        (["env.id=Acrobot-v1", "policy=ppo", "reward=constant"], "constant*1 → GAE"),
        (["cartpole_ppo", "reward.scale=0.5", "reward.clip=[-1,1]"], "env*1 → *0.5 → clip → GAE"),
    ],
)
def test_the_pipeline_is_one_line(arguments, line):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.output == line.replace("*", chr(215)) + "\n"


def test_the_whole_configuration_can_be_shown_and_used(tmp_path):
    result = CliRunner().invoke(app, ["cartpole_ppo", "seed=3", "--full"])
    assert result.exit_code == 0, result.output
    file = tmp_path / "mine.yaml"
    file.write_text(result.output.partition("\n\n")[2])
    assert compose(file) == compose("cartpole_ppo", ["seed=3"])
