"""``guerdon explain``: an option, or the reward pipeline of a configuration."""

import re

import pytest
import typer
from typer.testing import CliRunner

from guerdon.cli.info import explain
from guerdon.config import ConfigError, compose, registry_of

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


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ["policy.clip_range", "policy=ppo"],
            [
                "policy.clip_range (ppo): Clip range of the probability ratio; usually 0.1 to 0.3.",
                "  type: float, > 0",
                "  default: 0.2",
            ],
        ),
        (
            ["run.keep"],
            ["run.keep: Number of checkpoints to keep.", "  type: int, ≥ 1", "  default: 3"],
        ),
        (
            ["cartpole_dqn", "collect.n_step"],
            [
                (
                    "collect.n_step: Environment steps per iteration, over all environments; "
                    "usually 1 to 64, on-policy 32 to 8,192."
                ),
                "  type: int or null, ≥ 1",
                "  default: null; 8 for dqn",
            ],
        ),
    ],
)
def test_an_option_is_explained(arguments, lines):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == lines


def test_an_option_of_several_policies_is_explained_for_each():
    lines = CliRunner().invoke(app, ["policy.learning_rate"]).output.splitlines()
    named = [re.search(r"\((.*)\)", line)[1].split(", ") for line in lines[::3]]
    groups = [set(names) & {"a2c", "ddpg", "dqn", "ppo", "sac", "td3"} for names in named]
    assert [group for group in groups if group] == [
        {"a2c"}, {"ddpg", "td3"}, {"dqn"}, {"ppo"}, {"sac"}
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [["reward.terms.gail.form"], ["reward.form", "reward=gail"]])
def test_an_option_of_a_reward_term_is_explained(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.output.startswith("reward.form (gail): Reward of a logit:")


def test_a_section_is_a_table_of_its_options():
    lines = CliRunner().invoke(app, ["policy.epsilon"]).output.splitlines()
    assert lines[0].split() == ["option", "default", "meaning"]
    assert [line.split()[0] for line in lines[1:4]] == [
        "policy.epsilon",
        "policy.epsilon.start",
        "policy.epsilon.end",
    ]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("policy.gama", "did you mean 'gamma'?"),
        ("run.clip_range", "did you mean 'policy.clip_range'?"),
        ("reward.terms.gail.fom", "did you mean 'form'?"),
    ],
)
def test_an_unknown_option_gets_the_nearest(key, hint):
    result = CliRunner().invoke(app, [key])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).endswith(hint)


def test_an_option_of_a_class_of_the_users_is_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "knobs.py").write_text(
        "from guerdon.policy import PPO, register_policy\n"
        "from guerdon.policy.ppo import PPOConfig\n"
        "class KnobConfig(PPOConfig):\n"
        "    knob: int = 3\n"
        '    """Setting of a knob."""\n'
        "@register_policy('knobbed')\n"
        "class Knobbed(PPO):\n"
        "    Config = KnobConfig\n"
    )
    words = ["policy.knob", "policy=knobbed", "imports=knobs.py"]
    try:
        result = CliRunner().invoke(app, words)
    finally:
        registry_of("policy")._classes.pop("knobbed", None)
    assert result.output.startswith("policy.knob (knobbed): Setting of a knob."), result.output
