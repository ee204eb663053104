"""A journal removes what was written after a point, and nothing else."""

import json

import numpy as np
import pytest

from guerdon.data import Batch, Preference, save_preferences
from guerdon.data.frames import Trajectory, write_trajectory
from guerdon.data.journal import Journal
from guerdon.data.preferences import load_preferences, save_label


def trajectory(value):
    images = {"camera": np.full((2, 1, 4, 4), value, np.uint8)}
    return Trajectory(images, np.zeros(2, np.float32), False)


def preference(pair):
    segment = Batch(obs=np.zeros((3, 2)))
    return Preference(pair, segment, segment, label=1.0, rater="synthetic")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "outputs.jsonl"


@pytest.fixture
def journal(file):
    journal = Journal()
    journal.open(file)
    yield journal
    journal.close()


def rewind(file, length):
    journal = Journal()
    journal.open(file, length)
    journal.close()
    assert journal.length == len(file.read_text().splitlines())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("format", ["npz", "npy"])
def test_later_trajectories_are_removed(format, journal, file, tmp_path):  # noqa: A002
    for value in range(4):
        write_trajectory(tmp_path / "frames", trajectory(value), format=format, note=journal.note)
    write_trajectory(tmp_path / "frames", trajectory(9), format=format)  # by another process
    assert journal.length == 4
    rewind(file, 2)
    kept = [f"{number:06d}.{format}" for number in (0, 1, 4)]
    assert names(tmp_path / "frames") == kept
    rewind(file, 2)
    assert names(tmp_path / "frames") == kept
    rewind(file, None)
    assert names(tmp_path / "frames") == kept
    rewind(file, 0)
    assert names(tmp_path / "frames") == kept[-1:]


def test_a_file_of_another_content_stays(journal, file, tmp_path):
    path = write_trajectory(tmp_path, trajectory(0), note=journal.note)
    path.write_bytes(b"something else")
    rewind(file, 0)
    assert path.read_bytes() == b"something else"


def test_a_file_is_listed_before_it_has_its_name(journal, tmp_path):
    def note(path, content):
        assert not path.exists()
        journal.note(path, content)

    write_trajectory(tmp_path / "frames", trajectory(0), note=note)
    assert journal.length == 1


def test_later_preferences_are_removed_with_their_segments(journal, file, tmp_path):
    path = tmp_path / "preferences.jsonl"
    save_preferences(path, [preference("mine")])
    save_preferences(path, map(preference, ("000000", "000001")), journal.note)
    save_preferences(path, [preference("000002")], journal.note)
    save_preferences(path, [preference("000003")])
    rewind(file, 1)
    assert [each.pair for each in load_preferences(path)] == ["mine", "000000", "000003"]
    assert names(tmp_path / "preferences_segments") == ["000000", "000003", "mine"]


def test_segments_without_a_line_are_removed(journal, file, tmp_path):
    """As a kill leaves them: segments are written before the lines."""
    path = tmp_path / "preferences.jsonl"
    save_preferences(path, [preference("000000")], journal.note)
    path.unlink()
    for name in (".000000.abcdef01.tmp", ".000001.abcdef01.tmp", ".000000.draft.tmp"):
        (tmp_path / "preferences_segments" / name).mkdir()
    rewind(file, 0)
    assert names(tmp_path / "preferences_segments") == [".000000.draft.tmp", ".000001.abcdef01.tmp"]


def test_a_pair_that_someone_else_has_labelled_stays(journal, file, tmp_path):
    path = tmp_path / "preferences.jsonl"
    save_preferences(path, map(preference, ("000000", "000001")), journal.note)
    save_label(path, "000001", 0.0, "me")
    rewind(file, 0)
    labels = [(each.pair, each.label, each.rater) for each in load_preferences(path)]
    assert labels == [("000001", 1.0, "synthetic"), ("000001", 0.0, "me")]


@pytest.mark.parametrize("pair", ["../thesis", "..", "/thesis", "000000"])
def test_an_entry_cannot_name_what_the_run_has_not_written(pair, file, tmp_path):
    thesis = tmp_path / "thesis"
    save_preferences(tmp_path / "preferences.jsonl", [preference("000000")])
    thesis.mkdir()
    (thesis / "text").write_text("my thesis")
    entries = [
        {"path": str(tmp_path / "preferences.jsonl"), "sha256": "0" * 64, "pair": pair},
        {"path": str(tmp_path / "thesis.jsonl"), "sha256": "0" * 64, "pair": pair},
        {"path": str(thesis / "text"), "sha256": "0" * 64},
    ]
    file.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    rewind(file, 0)
    assert (thesis / "text").read_text() == "my thesis"
    assert len(load_preferences(tmp_path / "preferences.jsonl")) == 1


def test_only_segments_are_removed(file, tmp_path):
    (tmp_path / "a_segments" / "1").mkdir(parents=True)
    (tmp_path / "a_segments" / "1" / "text").write_text("my thesis")
    entry = {"path": str(tmp_path / "a.jsonl"), "sha256": "0" * 64, "pair": "1"}
    file.write_text(f"{json.dumps(entry)}\n")
    with pytest.raises(ValueError, match=r"outputs\.jsonl lists what .* holds 'text', too"):
        rewind(file, 0)
    assert (tmp_path / "a_segments" / "1" / "text").read_text() == "my thesis"


def test_a_torn_entry_lists_nothing(journal, file, tmp_path):
    write_trajectory(tmp_path / "frames", trajectory(0), note=journal.note)
    with file.open("a") as torn:
        torn.write('{"path": "/x", "sha')
    rewind(file, 0)
    assert names(tmp_path / "frames") == []


def entry(path):
    return json.dumps({"path": path, "sha256": "x", "pair": "a"})


DAMAGED = [
    *("{}", "[]", "3", "nonsense", '{"path": 3, "sha256": "a"}', "[" * 200_000),
    *map(entry, ("", "/", ".", "a.jsonl", "../a.jsonl")),
]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_journal_is_named(line, file):
    file.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"outputs\.jsonl is damaged: remove it; trajectories"):
        rewind(file, 0)


@pytest.mark.parametrize("pair", [{}, {"pair": "a"}])
def test_an_entry_that_cannot_be_a_file_is_refused(pair, file, tmp_path):
    entry = {"path": f"{tmp_path}/{'a' * 300}/000001.npz", "sha256": "x", **pair}
    file.write_text(f"{json.dumps(entry)}\n")
    with pytest.raises(ValueError, match=r"outputs\.jsonl lists what cannot be removed: "):
        rewind(file, 0)


@pytest.mark.parametrize("path", ["/proc/self/mem", "/proc/kmsg", "/dev/zero"])
def test_only_files_of_preferences_are_read(path, file):
    file.write_text(entry(path) + "\n")
    rewind(file, 0)


def test_without_a_run_nothing_is_listed(tmp_path):
    write_trajectory(tmp_path / "frames", trajectory(0), note=Journal().note)
    assert names(tmp_path / "frames") == ["000000.npz"]
