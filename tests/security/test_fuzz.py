"""The fuzzer, with few files; `make fuzz` reads many."""

from tests.security import bad_kinds, fuzz, kinds


def test_few_damaged_files_of_every_kind(tmp_path):
    counts, failures = fuzz.fuzz(300, workers=1, seed=0, out=tmp_path)
    assert failures == []
    assert counts.keys() == kinds.KINDS.keys()
    assert sum(found["read"] for found in counts.values()) > 20
    assert sum(found["refused"] for found in counts.values()) > 100


EXPECTED = {
    "crash": "the process died with exit code -6",
    "hang": "reading took more than 1 s",
    "allocate": "MemoryError: Unable to allocate 8.00 GiB",
    "misread": "damaged data was read",
    "fail": "KeyError: False",
}


def test_failures_are_found(tmp_path, capsys):
    options = {"module": "tests.security.bad_kinds", "seconds": 1.0}
    counts, failures = fuzz.fuzz(30, 1, seed=3, out=tmp_path, **options)
    assert counts["refuse"]["refused"] > 0
    for name, message in EXPECTED.items():
        assert counts[name]["failed"] > 0
        told = [failure for failure in failures if failure.startswith(f"{name}: ")]
        assert all(message in failure for failure in told)
        kept = tmp_path / told[0].rpartition("/")[2].removesuffix(")")
        assert not bad_kinds.is_good(kept / "files")
        assert message in (kept / "why.txt").read_text()
    fuzz.show(counts, failures, seed=3, seconds=1.0)
    shown = capsys.readouterr().out
    assert "FAILED (seed 3): misread: damaged data was read" in shown
