"""Everything that a run writes is that of the checkpoint it resumes from, and at the end agrees."""

import json

import pytest

from guerdon.data.preferences import load_preferences
from guerdon.training.run import train
from tests.security.torture import Torture, differences

KINDS = ("preference", "frames", "gail")


class Killed(BaseException):
    """As good as a kill: no cleanup writes anything."""


@pytest.fixture(scope="module")
def torture(tmp_path_factory):
    return Torture(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def whole(torture):
    """Runs that never stopped."""
    for kind in KINDS:
        folder = torture.folder(kind, "whole")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            train("config.yaml", display="none")
    return torture.root


def kill_at(step):
    """A callback that ends a run at the first line of metrics after a step."""

    def callback(steps, *_):
        if steps > step:
            raise Killed

    return callback


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [(40,), (70, 130, 200)])  # before and after a checkpoint
def test_after_kills_all_is_as_if_there_were_none(kind, steps, torture, whole, monkeypatch):
    folder = torture.folder(kind, f"killed-{len(steps)}")
    monkeypatch.chdir(folder)
    for number, step in enumerate(steps):
        source = {"resume": "run"} if number else {"source": "config.yaml"}
        with pytest.raises(Killed):
            train(**source, callback=kill_at(step), display="none")
    train(resume="run", display="none")
    assert differences(whole / kind / "whole", folder) == []


def test_a_pair_that_someone_has_labelled_in_the_meantime_stays(torture, monkeypatch):
    folder = torture.folder("preference", "shared")
    monkeypatch.chdir(folder)
    with pytest.raises(Killed):
        train("config.yaml", callback=kill_at(130), display="none")
    records = folder / "records" / "preferences.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    labelled = lines[-1]["pair"]  # of the killed run, after its checkpoint
    mine = {"pair": labelled, "label": 1.0, "rater": "me", "time": "now"}
    records.write_text(records.read_text() + json.dumps(mine) + "\n")
    train(resume="run", display="none")
    found = load_preferences(records)
    assert [each.label for each in found if each.rater == "me"] == [1.0]
    own = [each for each in found if each.rater.startswith("synthetic")]
    assert len(own) == 40 + 1  # and the pair that is labelled


@pytest.mark.parametrize("exact", [False, True])
def test_what_was_written_before_an_extra_checkpoint_stays_unless_the_resume_is_exact(
    exact, torture, whole, monkeypatch
):
    folder = torture.folder("frames", f"stopped-{exact}")
    monkeypatch.chdir(folder)
    train("config.yaml", callback=lambda steps, *_: steps < 120, display="none")
    written = {path: path.stat().st_mtime_ns for path in folder.glob("**/*.npz")}
    train(resume="run", exact=exact, display="none")
    kept = [path for path, time in written.items() if path.stat().st_mtime_ns == time]
    assert (len(kept) == len(written)) is not exact
    if exact:
        assert differences(whole / "frames" / "whole", folder) == []
