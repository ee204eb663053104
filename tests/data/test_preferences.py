import json

import numpy as np
import pytest

from guerdon.data import Batch, Preference, load_preferences, save_label, save_preferences
from tests.data.test_array_files import write_arrays


def segment(start, n_rows=3):
    numbers = np.arange(start, start + n_rows, dtype=np.float32)
    return Batch(obs=Batch(place=numbers[:, None]), act=np.arange(n_rows))


def judged(pair="a", label=1.0, rater="anna", time="2030-01-02T03:04:05+00:00"):
    return Preference(pair, segment(0), segment(10), label, rater, time)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "labels.jsonl"


def test_what_was_saved_is_loaded(path):
    labels = [0.0, 0.5, 1.0, "skip", None]
    save_preferences(path, [judged(str(i), label) for i, label in enumerate(labels)])
    found = load_preferences(path)
    assert [each.label for each in found] == labels
    assert [each.pair for each in found] == ["0", "1", "2", "3", "4"]
    assert {(each.rater, each.time) for each in found[:4]} == {("anna", judged().time)}
    np.testing.assert_array_equal(found[0].second.obs.place, [[10], [11], [12]])
    np.testing.assert_array_equal(found[0].first.act, [0, 1, 2])


def test_a_line_holds_the_judgement_and_names_the_segments(path):
    save_preferences(path, [judged()])
    assert lines(path) == [
        {
            "pair": "a",
            "segments": "labels_segments/a",
            "label": 1.0,
            "rater": "anna",
            "time": "2030-01-02T03:04:05+00:00",
        }
    ]
    assert (path.parent / "labels_segments" / "a").is_dir()


def test_segments_in_a_file_of_arrays_are_read(path):
    path.with_name("labels_segments").mkdir()
    leaves = [
        {"path": [side, "act"], "kind": "array", "entry": side} for side in ("first", "second")
    ]
    arrays = {"first": np.arange(3), "second": np.arange(3) + 10}
    write_arrays(path.parent / "labels_segments" / "a.npz", leaves, arrays)
    line = {"pair": "a", "segments": "labels_segments/a.npz", "label": 1.0, "rater": "anna"}
    path.write_text(json.dumps(line) + "\n")
    (found,) = load_preferences(path)
    assert found.label == 1
    assert (found.first.act.tolist(), found.second.act.tolist()) == ([0, 1, 2], [10, 11, 12])


def test_the_time_is_now_where_none_is_given(path):
    save_preferences(path, [judged(time="")])
    assert lines(path)[0]["time"].endswith("+00:00")


def test_judgements_are_added(path):
    save_preferences(path, [judged("a", None, "")])
    save_preferences(path, [judged("b", None, "")])
    save_label(path, "b", 0.5, "anna")
    assert [(each.pair, each.label) for each in load_preferences(path)] == [("a", None), ("b", 0.5)]
    assert len(lines(path)) == 3


def test_the_newest_judgement_of_a_rater_counts(path):
    save_preferences(path, [judged("a", 0.0, "anna")])
    save_label(path, "a", 1, "bert")
    save_label(path, "a", "skip", "anna")
    found = {each.rater: each.label for each in load_preferences(path)}
    assert found == {"anna": "skip", "bert": 1.0}


def test_the_folder_can_be_moved(path, tmp_path_factory):
    save_preferences(path, [judged()])
    elsewhere = tmp_path_factory.mktemp("moved") / "here"
    path.parent.rename(elsewhere)
    assert load_preferences(elsewhere / path.name)[0].label == 1.0


def test_a_last_line_without_an_end_stays_a_line_of_its_own(path):
    save_preferences(path, [judged()])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    save_label(path, "a", 0, "bert")
    assert len(load_preferences(path)) == 2


@pytest.mark.parametrize("label", [2, 0.4, True, "maybe", "0"])
def test_a_label_that_is_none_is_refused(path, label):
    with pytest.raises(ValueError, match=r"has to be 0, 0\.5, 1 or 'skip'"):
        judged(label=label)
    save_preferences(path, [judged()])
    with pytest.raises(ValueError, match=r"has to be 0, 0\.5, 1 or 'skip'"):
        save_label(path, "a", label, "anna")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(ValueError, match=r"pair name .* is invalid"):
        judged(name)


def test_segments_have_to_be_equally_long():
    with pytest.raises(ValueError, match="have 3 and 2 rows"):
        Preference("a", segment(0), segment(0, 2))
    with pytest.raises(ValueError, match="have 0 and 0 rows"):
        Preference("a", segment(0, 0), segment(0, 0))


def test_segments_have_to_have_the_same_fields():
    with pytest.raises(ValueError, match="only one segment of the pair 'a' has 'rew'"):
        Preference("a", segment(0), segment(0).replace(rew=np.zeros(3)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 of .* is not valid JSON"),
        ("[1]", "line 2 of .* has no 'pair'"),
        ('{"pair": "a"}', "line 2 of .* has no 'label'"),
        ('{"pair": "a", "label": 3}', "label of line 2 .* is 3"),
        ('{"pair": "x", "label": 1}', "has a label of the pair 'x' before"),
        ('{"pair": "x", "label": 1, "segments": "no.npz"}', "refers to missing segments"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_where(path, line, message):
    save_preferences(path, [judged()])
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_preferences(path)


def test_a_file_that_is_not_there_is_an_error(path):
    with pytest.raises(FileNotFoundError, match="there are no preferences at"):
        load_preferences(path)
    save_preferences(path, [judged()])
    with pytest.raises(KeyError, match="has no pair 'b'"):
        save_label(path, "b", 1, "anna")
