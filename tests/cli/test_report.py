"""``guerdon report``: it names the page, or what is wrong."""

from typer.testing import CliRunner

from guerdon.cli import app


def guerdon(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_page_is_written_where_it_is_wanted(tmp_path):
    options = ("run.max_steps=64", "collect.n_step=32", "learn.batch_size=32", "eval.episodes=1")
    run = tmp_path / "run"
    assert guerdon("train", "cartpole_ppo", *options, f"run.dir={run}").exit_code == 0
    result = guerdon("report", run)
    assert (result.exit_code, result.output) == (0, f"wrote {run / 'report.html'}\n")
    assert "<h1>cartpole_ppo</h1>" in (run / "report.html").read_text()
    out = tmp_path / "a" / "page.html"
    assert guerdon("report", run, "--out", out).output == f"wrote {out}\n"
    assert out.is_file()


def test_a_folder_without_a_run_is_named(tmp_path):
    result = guerdon("report", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path} is not a run directory" in result.output
