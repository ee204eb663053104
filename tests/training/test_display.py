"""The display on a terminal and in a pipe."""

import io
import os
import pty
import re
import select
import time

import pytest

from guerdon.training import display
from guerdon.training.display import Display, LiveDisplay, make_display
from tests.processes import Program

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
METRICS = {
    "rollout/ep_rew_mean": 143.21,
    "eval/mean_reward": 201.0,
    "eval/std_reward": 12.14,
    "time/fps": 8400.0,
    "train/loss": 0.012345,
    "train/approx_kl": 0.0071,
    "reward/accuracy": 0.93,
}


def written(total_steps, *calls):
    stream = io.StringIO()
    shown = make_display(total_steps, stream)
    for step, metrics in calls:
        shown.log(step, metrics)
    shown.close()
    return stream.getvalue().splitlines()


# --- lines


def test_a_pipe_gets_one_line_for_each_call():
    lines = written(364_800, (12_000, METRICS), (16_200, {"rollout/ep_rew_mean": 150}))
    assert lines == [
        "steps 12,000  return 143.2  eval 201.0±12.1  fps 8,400  left 0:00:42",
        "steps 16,200  return 150.0  eval 201.0±12.1  fps 8,400  left 0:00:42",
    ]


def test_success_is_shown_beside_what_a_model_says_of_it():
    metrics = {"eval/success_rate": 0.25, "reward/success_rate": 1.0}
    assert written(None, (5, metrics)) == ["steps 5  success 25%  predicted success 100%"]


def test_true_success_beside_predicted_success_is_of_the_same_frames():
    metrics = {
        "eval/success_rate": 0.25,
        "reward/success_rate": 1.0,
        "eval/success_at_prediction": 0.9,
    }
    assert written(None, (5, metrics)) == [
        "steps 5  predicted success 100%  true success at prediction 90%"
    ]


def test_what_is_not_known_is_left_out():
    assert written(None, (5, {})) == ["steps 5"]
    assert written(None, (5, {"time/fps": 10})) == ["steps 5  fps 10"]
    assert written(100, (5, {"time/fps": 0.0})) == ["steps 5  fps 0"]
    assert written(100, (5, {"eval/std_reward": 1.0})) == ["steps 5"]


@pytest.mark.parametrize(
    ("steps", "left"), [(10, "0:00:10"), (3_600, "1:00:00"), (90_061, "1 day, 1:01:01")]
)
def test_the_time_left_is_what_the_speed_says(steps, left):
    assert written(steps, (0, {"time/fps": 1.0}))[0].endswith(f"left {left}")


def test_small_returns_have_more_digits_and_no_number_is_shown_as_such():
    metrics = {"rollout/ep_rew_mean": 0.93712, "eval/mean_reward": 9.5, "eval/std_reward": 11.25}
    assert written(None, (1, metrics)) == ["steps 1  return 0.937  eval 9.500±11.250"]
    assert written(None, (1, {"rollout/ep_rew_mean": float("nan")})) == ["steps 1  return nan"]


def test_a_stream_without_the_sign_gets_another():
    raw = io.BytesIO()
    shown = make_display(None, io.TextIOWrapper(raw, encoding="ascii"), "lines")
    shown.log(1, {"eval/mean_reward": 20, "eval/std_reward": 1})
    shown.text("naïve")
    assert raw.getvalue() == b"steps 1  eval 20.0+-1.0\nna?ve\n"


def test_the_run_goes_on_when_the_reader_of_the_pipe_leaves():
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    shown = make_display(None, stream)
    shown.log(1, {})
    shown.log(2, {})
    with pytest.raises(BrokenPipeError):
        stream.close()


# --- choosing


def test_the_mode_fits_the_stream(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    live = make_display(10, Terminal())
    live.close()
    assert isinstance(live, LiveDisplay)
    assert type(make_display(10, io.StringIO())) is Display
    assert type(make_display(10, Terminal(), "lines")) is Display
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_display(10, Terminal())) is Display
    with pytest.raises(ValueError, match="'auto', 'live', 'lines' or 'none', not 'loud'"):
        make_display(10, io.StringIO(), "loud")


def test_none_shows_nothing():
    stream = io.StringIO()
    shown = make_display(10, stream, "none")
    shown.log(1, METRICS)
    shown.progress(2)
    shown.text("x")
    shown.close()
    assert stream.getvalue() == ""


# --- the panel


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    stream = io.StringIO()
    shown = make_display(48_000, stream, "live", title="cartpole_ppo · CartPole-v1 · ppo")
    yield shown, stream
    shown.close()


def test_the_panel_shows_title_progress_returns_rewards_and_losses(live):
    shown, stream = live
    shown.log(6_000, {"eval/mean_reward": 300.0, "eval/best_mean_reward": 300.0})
    shown.log(12_000, METRICS)
    shown.close()
    last = plain(stream.getvalue()).rpartition("╭")[2]
    assert "cartpole_ppo · CartPole-v1 · ppo" in last
    assert "steps 12,000 / 48,000" in last
    assert re.search(r"return 143\.2 +eval 201\.0±12\.1 +best 300\.0 +fps 8,400 +left 0:0", last)
    assert re.search(r"reward\s.*\n.*accuracy +0\.93", last)
    assert re.search(r"loss +0\.01235 +approx_kl +0\.0071", last)
    assert "time/fps" not in last


def test_the_panel_shows_every_worker(live):
    shown, stream = live
    rows = [("collector 0", "collecting", 0, 12), ("collector 1", "restarting", 2, 11)]
    shown.watch(lambda: [*rows, ("evaluator 0", "idle", 0, 0)])
    shown.close()
    last = plain(stream.getvalue()).rpartition("╭")[2]
    assert re.search(r"collector 0 collecting v12 +collector 1 restarting v11 2 restarts", last)
    assert re.search(r"evaluator 0 idle  ", last)


def test_the_panel_is_drawn_at_most_four_times_a_second(live, monkeypatch):
    shown, stream = live
    now = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    before = stream.getvalue().count("╭")
    for step in range(100):
        now[0] += 0.01
        shown.log(step, METRICS)
        shown.progress(step)
    assert stream.getvalue().count("╭") - before == 4
    shown.close()
    assert "steps 99 / 48,000" in plain(stream.getvalue()).rpartition("╭")[2]


def test_messages_stand_above_the_panel_as_they_are(live):
    shown, stream = live
    shown.log(1, METRICS)
    shown.text("saved [red]step_1[/red]")
    shown.close()
    text = plain(stream.getvalue())
    assert text.index("saved [red]step_1[/red]") < text.rindex("╭")


def test_the_best_is_kept(live):
    shown, stream = live
    for result, best in ((5.0, 5.0), (7.0, 7.0), (6.0, 7.0)):
        shown.log(1, {"eval/mean_reward": result, "eval/best_mean_reward": best})
    shown.log(2, {"eval/mean_reward": float("nan")})
    shown.close()
    assert re.search(r"eval nan +best 7\.000", plain(stream.getvalue()))


def test_without_a_number_of_steps_the_panel_counts_only():
    stream = io.StringIO()
    shown = make_display(None, stream, "live")
    shown.log(1_234, {})
    shown.close()
    assert re.search(r"steps 1,234 +│", plain(stream.getvalue()))


def test_the_panel_has_a_curve_of_the_return(live):
    shown, stream = live
    shown.log(0, {"rollout/ep_rew_mean": 10.0})
    shown.log(1, {"rollout/ep_rew_mean": float("nan"), "train/loss": 1.0})
    shown.progress(2)
    for step in range(3, 10):
        shown.log(step, {"rollout/ep_rew_mean": 10.0 * (step - 1)})
    shown.close()
    last = plain(stream.getvalue()).rpartition("╭")[2]
    assert "return ▁▂▃▄▅▆▇█ 10 to 80" in last


def test_a_curve_of_blocks_is_as_wide_as_it_may_be():
    assert display.sparkline([1.0, 1.0, 1.0]) == "▁▁▁"
    assert display.sparkline([0.0, 7.0, 3.0]) == "▁█▄"
    assert display.sparkline([*range(800)], 8) == "▁▂▃▄▅▆▇█"
    assert len(display.sparkline([*range(1_000)])) == 40


# --- real terminals


def screen(text, width):
    """What a terminal shows in the end, as lines: moves, erased lines, and lines that are full."""
    lines, row, column = [[]], 0, 0
    for control, argument, kind, character in re.findall(
        r"(\x1b\[([0-9;?]*)([A-Za-z]))|([^\x1b])", text
    ):
        if control:
            if kind == "A":
                row = max(0, row - int(argument or 1))
            elif kind == "K":
                lines[row] = []
            continue
        if character == "\r":
            column = 0
            continue
        if character == "\n" or column == width:
            row, column = row + 1, 0 if character != "\n" or column == width else column
            lines += [[]] * (row == len(lines))
            lines[row] = list(lines[row])
        if character != "\n":
            line = lines[row]
            line += [" "] * (column + 1 - len(line))
            line[column] = character
            column += 1
    return ["".join(line).rstrip() for line in lines]


INTERRUPTED = """
import sys, time
from guerdon.training.display import make_display
from guerdon.training.process import interrupts
shown = make_display(1000, sys.stdout, title="a run")
with interrupts(shown.interrupt) as asked:
    for step in range(10, 1_000_000, 10):
        shown.log(step, {"rollout/ep_rew_mean": 20.0, "train/loss": 1.0})
        time.sleep(0.01)
        if asked():
            break
    time.sleep(0.3)
    shown.log(step, {})
    shown.text("stopped: interrupted")
shown.close()
print("saved")
"""


def test_ctrl_c_leaves_the_panel_whole():
    text, code = on_terminal(interrupt=True, script=INTERRUPTED)
    assert code == 0
    assert "^C" in text
    assert "stopping after this iteration; press Ctrl-C again" in plain(text)
    lines = screen(text, 100)  # which the program is told
    assert lines[0] == "stopped: interrupted"
    assert lines[1].startswith("╭─ a run ─")
    assert [line[:1] for line in lines[2:]].count("╭") == 0
    assert lines[-3].startswith("╰──")
    assert lines[-2] == "saved"
    assert "^C" not in "".join(lines)


# --- and what comes after


RUN = """
import sys, time
from guerdon.training.display import make_display
shown = make_display(1000, sys.stdout, title="a run")
{start}
    for step in range(10, 1_000_000, 10):
        shown.log(step, {{"rollout/ep_rew_mean": 20.0, "train/loss": 1.0}})
        time.sleep(0.01)
        {middle}
{end}
"""


def on_terminal(start="", middle="", end="", interrupt=False, script=None):
    """What a script writes to a terminal of its own, and how it ended."""
    script = script or RUN.format(start=start, middle=middle, end=end)
    terminal, theirs = pty.openpty()
    process = Program("-c", script, terminal=theirs)
    os.close(theirs)
    data, deadline = b"", time.monotonic() + 30
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            data += os.read(terminal, 1 << 16)
        except OSError:  # how Linux says that the other end is closed
            break
        if interrupt and b"return" in data:
            os.write(terminal, b"\x03")
            interrupt = False
    os.close(terminal)
    return data.decode(), process.wait()


def test_a_terminal_gets_the_panel_and_its_cursor_back():
    text, code = on_terminal(
        "if True:", "if step == 100: print('from outside'); break", "shown.close()"
    )
    assert code == 0
    assert "a run" in plain(text)
    assert "steps 100 / 1,000" in plain(text)
    assert re.search(r"\rfrom outside\r\n╭", plain(text))
    assert text.count(HIDE) == text.count(SHOW) == 1
    assert text.index(HIDE) < text.index(SHOW)


def test_the_cursor_comes_back_after_ctrl_c():
    text, code = on_terminal("try:", "pass", "finally:\n    shown.close()", interrupt=True)
    assert code != 0
    assert "KeyboardInterrupt" in text.partition(SHOW)[2]


def test_the_cursor_comes_back_after_an_error_even_if_nobody_closes():
    text, code = on_terminal("if True:", "if step == 100: raise ValueError('lost')", "")
    assert code == 1
    assert "lost" in text
    assert SHOW in text.partition(HIDE)[2]
