"""Names and texts of users are shown as they are, and are never markup."""

import io
import json
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from guerdon.cli.common import show_table
from guerdon.lab import page
from guerdon.lab.curves import Curve, plot
from guerdon.lab.report import write_report
from guerdon.training.display import make_display
from tests.cli.tiny import guerdon, train

MARKUP = ("[/foo]", "[bold]x[/bold]", "[link=file:///etc/passwd]x", "\\[/x]", ":warning:", "a\\")
MATH = (r"$\frac$", "$x_1$", "_hidden", r"50 % \& $", "$", "^_^")
HTML = "\"'><script>alert(1)</script></style></pre><img src=x onerror=alert(1)>&amp;"


# --- a terminal


@pytest.mark.parametrize("name", MARKUP)
def test_a_name_is_shown_literally_on_a_terminal(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    stream = io.StringIO()
    display = make_display(100, stream, "live", title=name)
    display.log(10, {"rollout/ep_rew_mean": 1.0, f"train/{name}": 1.0})
    display.text(f"said {name}")
    display.close()
    assert f"─ {name} ─" in stream.getvalue()
    assert f"said {name}" in stream.getvalue()


@pytest.mark.parametrize("name", MARKUP)
def test_a_name_is_shown_literally_in_a_table(name, capsys):
    show_table([[name, "1"]], [name, "runs"])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{name} ")
    assert second.startswith(f"{name} ")


# --- plots


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    return folder


def named(run, folder, name):
    """A copy of a run with another name."""
    shutil.copytree(run, folder)
    text = (folder / "config.yaml").read_text()
    assert "  name: cartpole_ppo\n" in text
    new = text.replace("  name: cartpole_ppo\n", f"  name: {json.dumps(name)}\n")
    (folder / "config.yaml").write_text(new)
    return folder


@pytest.mark.parametrize("name", [*MATH, *MARKUP])
def test_a_name_is_shown_literally_in_a_plot(name, run, tmp_path):
    pytest.importorskip("matplotlib")
    folder = named(run, tmp_path / "run", name)
    line = {"step": 1, "time": 1.0, name: 2.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    figure = plot(folder, name, tmp_path / "curves.svg", title=name)
    (axes,), (legend,) = figure.axes, figure.legends
    (label,) = legend.get_texts()
    assert label.get_text().strip() == f"{name}, 1 seed"
    assert axes.get_title() == axes.get_ylabel() == name
    assert not any(text.get_parse_math() for text in (label, axes.title, axes.yaxis.label))


@pytest.mark.parametrize("name", ["[/foo]", r"$\frac$"])
def test_a_run_with_an_odd_name_works_from_end_to_end(name, tmp_path):
    folder = tmp_path / "run"
    train(folder, f"run.name='{name}'", "--display", "live")
    assert guerdon("plot", folder, "--out", tmp_path / "curves.png").exit_code == 0
    assert guerdon("report", folder).exit_code == 0
    assert name in (folder / "report.html").read_text()


# --- pages


class Elements(HTMLParser):
    """Collects the elements, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data):
        self.text += data


def check(text):
    """Asserts that a page has no element or attribute that runs code or loads anything."""
    found = Elements(text)
    assert not {"script", "iframe", "object", "embed", "link", "base", "form"} & {*found.elements}
    assert not [each for each in found.attributes if each[1].startswith("on")]
    sources = [value for _, name, value in found.attributes if name in ("src", "href")]
    assert all(value.startswith(("data:", "file:")) for value in sources)
    return found


def test_a_report_of_a_hostile_folder_holds_no_code(run, tmp_path):
    folder = named(run, tmp_path / "run", HTML)
    config = (folder / "config.yaml").read_text()
    config = config.replace("id: CartPole-v1", f"id: {json.dumps(HTML)}")
    config = config.replace("terms:\n    env:", f"terms:\n    {json.dumps(HTML)}:")
    (folder / "config.yaml").write_text(f"# {HTML}\n{config}")
    names = ("eval/mean_reward", "rollout/ep_rew_mean", f"train/{HTML}", f"reward/{HTML}")
    lines = [{"step": step, "time": 1.0, **dict.fromkeys(names, step)} for step in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "log.txt").write_text(f"2026-01-01 00:00:00 Warning: {HTML}\n")
    (folder / "run.json").write_text(json.dumps({"starts": [{HTML: HTML, "command": HTML}]}))
    summary = {"stop_reason": HTML, "env_steps": HTML, "fps": HTML}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "videos" / f"{HTML.replace('/', '')}.mp4").write_bytes(b"video")
    found = check(write_report(folder).read_text())
    assert found.elements.count("style") == 1
    # title and heading, name and value of a start, stop reason, metrics, config, ...
    assert found.text.count("<script>alert(1)</script></style></pre>") >= 12


def test_every_piece_of_a_page_is_escaped(tmp_path):
    (tmp_path / f"{HTML.replace('/', '')}.mp4").write_bytes(b"video")
    (path,) = tmp_path.iterdir()
    curve = {HTML: Curve(np.arange(2.0), np.arange(2.0))}
    frame = {HTML: np.zeros((3, 2, 2), np.uint8)}
    pieces = [
        page.table([[HTML]], [HTML]), page.warning_list([HTML]), page.video(path),
        page.paragraph(HTML), page.cards([(HTML, HTML)]), page.details(HTML, HTML),
        page.metrics_table(curve, ""), page.chart(HTML, curve, HTML),
        page.images(HTML, [frame], [HTML]),
    ]  # fmt: skip
    found = check(page.render([(HTML, piece) for piece in pieces]))
    assert "style" not in found.elements
