"""``guerdon demo``: it trains for real, and what it says is in the folder."""

import json
import re

from typer.testing import CliRunner

from guerdon.cli import app


def test_the_demo_shows_the_policy_before_and_after_training(tmp_path):
    out = tmp_path / "demo"
    result = CliRunner().invoke(app, ["demo", "--seconds", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    before, after = map(float, re.findall(r"training +return +([\d.]+) ±", result.output))
    assert 8 <= before <= 500  # CartPole-v1 cannot end earlier, nor later
    assert 8 <= after <= 500
    summary = json.loads((out / "summary.json").read_text())
    assert summary["stop_reason"] == "max_seconds"
    said = f"{summary['env_steps']:,} steps in {summary['wall_seconds']:.0f} s"
    assert said in result.output
    assert f"guerdon eval {out} --video" in result.output
