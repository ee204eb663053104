"""Small files that would hang the process, crash it, or take all memory; and honest large ones."""

import os
import pickle
import shutil
import struct
import time
import warnings
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch

from guerdon.config import compose
from guerdon.data import ReplayBuffer, load_demonstrations
from guerdon.data.array_files import read_arrays
from guerdon.data.frames import Trajectory, read_trajectory, write_trajectory
from guerdon.data.preferences import load_preferences
from guerdon.data.spaces import space_from_json
from guerdon.data.unpickle import load_weights, safe_unpickle
from guerdon.lab.curves import read_metrics
from guerdon.lab.report import write_report
from guerdon.limits import DEPTH, DamagedError, parse_json, read_bytes, read_lines
from guerdon.training.checkpoints import load_checkpoint
from guerdon.training.fit_files import compose_fit
from guerdon.training.run_folder import RunFolder, read_json
from tests.cli.tiny import train
from tests.data.test_array_files import write_arrays
from tests.data.test_unpickle import storage_bytes, tensor_call
from tests.security.attacks import outcome
from tests.security.kinds import KINDS
from tests.security.mutations import fresh_copy

# --- pickles

HEAD, STOP = b"\x80\x04", b"."
DUP, TUPLE1, TUPLE2, EMPTY_TUPLE = b"2", b"\x85", b"\x86", b")"
EMPTY_DICT, EMPTY_LIST, APPEND, SETITEM, NONE = b"}", b"]", b"a", b"s", b"N"


def doubled(levels):
    """A tuple that has two to the power of ``levels`` parts, though each is stored once."""
    return EMPTY_TUPLE + (DUP + TUPLE2) * levels


def doubled_lists(levels):
    put = (bytes([i]) for i in range(levels))
    twice = (b"q" + i + EMPTY_LIST + b"h" + i + APPEND + b"h" + i + APPEND for i in put)
    return EMPTY_LIST + b"".join(twice)


def nested_arrays(levels):
    """Arrays of objects in one another; to free them, NumPy calls itself."""
    one = pickle.dumps(np.array([None], dtype=object), 2)[2:-1]
    before, after = one.split(NONE + APPEND)
    return before * levels + NONE + (APPEND + after) * levels


def copied_text(size, copies):
    """A text that is encoded again and again, each copy for six bytes of the file."""
    text = b"X" + struct.pack("<I", size) + b"x" * size
    head = b"c_codecs\nencode\nq\x00" + text + b"q\x01X\x06\x00\x00\x00latin1q\x020"
    return head + b"00" + EMPTY_LIST + b"h\x00h\x01h\x02\x86Ra" * copies


def item(key):
    return EMPTY_DICT + key + NONE + SETITEM


PICKLES = {
    "a key of 2 ** 352 parts": item(doubled(352)),  # 713 bytes
    "a key of nested tuples": item(EMPTY_TUPLE + TUPLE1 * 200_000),
    "an element of a set": b"\x8f(" + doubled(100) + b"\x90",
    "an element of a frozenset": b"(" + doubled(100) + b"\x91",
    "a key, from the stack": b"(" + doubled(100) + NONE + b"d",
    "an argument of set": b"cbuiltins\nset\n]" + doubled(100) + b"a\x85R",
    "an argument of OrderedDict": b"ccollections\nOrderedDict\n](" + doubled(100) + b"Nta\x85R",
    "lists twice in lists": doubled_lists(60),
    "nested lists": EMPTY_LIST * 150_000 + APPEND * 149_999,
    "nested arrays": nested_arrays(20_000),
    "a text, copied": copied_text(10**5, 30_000),
}
COLLIDING = dict.fromkeys(i * (2**61 - 1) for i in range(30_000))
VALUES = {
    "numbers of one hash as keys": COLLIDING,
    "30,000 pairs as keys": {(i, -i): None for i in range(30_000)},
    "an array, used 30,000 times": [np.zeros(10**5)] * 30_000,
    "a tensor without strides": tensor_call(storage_bytes(torch.zeros(1)), 0, (2**31,), (0,)),
}


@pytest.mark.parametrize("name", [*PICKLES, *VALUES])
def test_pickles(name, tmp_path):
    path = tmp_path / "data.pkl"
    path.write_bytes(HEAD + PICKLES[name] + STOP if name in PICKLES else pickle.dumps(VALUES[name]))
    said = outcome(lambda: safe_unpickle(path))
    assert said.startswith(f"{path} is damaged or not a pickle: it ")


def test_many_changes_beside_many_objects():
    """A change looked for its object among all that were kept: 240 KB took half a minute."""
    dtype = b"cnumpy\ndtype\n(X\x02\x00\x00\x00f8\x89\x88tRq\x000"
    state = b"(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x010"
    others = b"".join(b"Nr" + struct.pack("<I", 2 + i) + b"0" for i in range(20_000))
    start = time.process_time()
    text = HEAD + dtype + state + others + b"h\x00h\x01b0" * 20_000 + b"h\x00" + STOP
    with pytest.raises(ValueError, match="asks for a value of type"):
        safe_unpickle(text)
    assert time.process_time() - start < 5


def test_honest_pickles(tmp_path):
    """Observations are shared by rows, infos by all of them; arrays are most of a file."""
    info = {"name": "x", "numbers": list(range(20))}
    frames = [np.full((3, 64, 64), i % 256, np.uint8) for i in range(301)]
    rows = [
        {"obs": frames[i], "next_obs": frames[i + 1], "action": i, "reward": 0.5, "done": i == 299}
        for i in range(300)
    ]
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps([{**row, "info": info} for row in rows]))
    (episode,) = load_demonstrations(path).episodes
    assert (episode.obs_next[:, 0, 0, 0] == np.arange(1, 301) % 256).all()
    large = {"arrays": [np.zeros(10**6) for _ in range(40)], "tuples": {(1, "a"): 2}, (): None}
    assert len(safe_unpickle(pickle.dumps(large))["arrays"]) == 40


# --- archives


def archive(path, descr, shape, content, **options):
    """A .npz file with the entries of a trajectory, whose images have this header."""
    header = str({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    entry = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr("images.a.npy", entry)
    return path


def test_an_archive_that_asks_for_8_gib_in_17_kb(tmp_path):
    path = archive(tmp_path / "0.npz", "<f4", (2**31,), bytes(17_000))
    for read in (read_trajectory, read_arrays):
        assert "does not fit what follows it" in outcome(lambda read=read: read(path))


def test_a_header_with_another_dtype(tmp_path):
    """It made half of the numbers of twice as many, since nothing read the rest of the entry."""
    leaf = {"path": ["x"], "kind": "array", "entry": "0"}
    path = write_arrays(tmp_path / "a.npz", [leaf], {"0": np.zeros(9_999, "<f4")})
    content = path.read_bytes()
    assert content.count(b"<f4") == 1
    path.write_bytes(content.replace(b"<f4", b"<f2"))
    assert "does not fit what follows it" in outcome(lambda: read_arrays(path))


@pytest.mark.parametrize("at", [0, 100, 39_995])
def test_every_byte_of_an_entry_is_checked(tmp_path, at):
    leaf = {"path": ["x"], "kind": "array", "entry": "0"}
    array = np.arange(9_999, dtype="<f4")
    path = write_arrays(tmp_path / "a.npz", [leaf], {"0": array})
    content = bytearray(path.read_bytes())
    content[content.index(array.tobytes()) + at] ^= 4
    path.write_bytes(content)
    assert "Bad CRC-32" in outcome(lambda: read_arrays(path))


def test_honest_archives(tmp_path):
    """Black images, of which a thousand fit into the space of one."""
    images = {"a": np.zeros((2_000, 3, 64, 64), np.uint8)}
    trajectory = Trajectory(images, np.zeros(2_000, np.float32), False)
    path = write_trajectory(tmp_path, trajectory)
    assert path.stat().st_size * 200 < images["a"].nbytes
    assert len(read_trajectory(path)) == 2_000


# --- YAML

CHAIN = [f'n{i}: "${{run.n{i - 1}}}${{run.n{i - 1}}}"' for i in range(1, 40)]


def chained(values, name, more=""):
    """Values that stand twice for the one before: ``I`` is its number, ``N`` that of the first."""
    lines = [values.replace("I", str(i)).replace("N", str(i + 1)) for i in range(25)]
    return f"run: {{name: '{name}'}}\nx:\n" + "".join(lines) + more


YAML = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 8)}]\n" for a, b in pairwise("abcdefghi")),
    "an alias of itself": "a: &a [*a]\n",
    "an alias of its parent": "a: &a {b: [{c: *a}]}\n",
    "merged aliases": "a0: &a0 {x: 1, y: 2}\n"
    + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40)),
    "interpolations": f'run: {{n0: x, {", ".join(CHAIN)}, name: "${{run.n39}}"}}\n',
    "empty interpolations": f"run: {{n0: '', {', '.join(CHAIN)}, name: \"${{run.n39}}\"}}\n",
    "relative interpolations": f"run: {{n0: x, {', '.join(CHAIN)}}}\n".replace("{run.", "{."),
    "interpolated lists": "run:\n  n0: [1, 2]\n"
    + "".join(f'  n{i}: ["${{run.n{i - 1}}}", "${{run.n{i - 1}}}"]\n' for i in range(1, 40)),
    "resolvers": f"run: {{n0: x, {', '.join(CHAIN)}}}\n".replace("{run.", "{oc.select:run."),
    "nested interpolations": chained(
        '  kI: x.bI\n  bN: "${oc.select:${x.kI}}${oc.select:${x.kI}}"\n', "${x.b25}", "  b0: x\n"
    ),
    "nested in quotes": chained(
        """  kI: x.bI\n  bN: '${oc.decode:"}${x.kI}"}'\n""", "${x.b25}", "  b0: x\n"
    ),
    "brackets": chained('  bN: "${x[bI]}${x[bI]}"\n', "${x.b25}", "  b0: x\n"),
    "keys with spaces": chained(
        '  b N: "${oc.select:x.b I}${oc.select:x.b I}"\n', "${oc.select:x.b 25}", "  b 0: x\n"
    ),
    "keys that are numbers": chained(
        '    N: "${.I}${.I}"\n', "${oc.select:x.1.25}", "    0: x\n"
    ).replace("x:\n", "x:\n  1:\n"),
    "other numbers of a list": chained('  - "${x.-I}${x.-I}"\n', "${x.25}").replace(
        "x:\n", "x:\n  - x\n"
    ),
    "through another": chained('  bN: "${y.bI}${y.bI}"\n', "${x.b25}", "  b0: x\ny: ${x}\n"),
    "used by a merge": chained(
        '  bN: "${x.bI}${x.bI}"\n', "a", "  b0: x\nrunner: ${oc.select:x.b25}\n"
    ),
    "used by a choice": chained('  bN: "${run.bI}${run.bI}"\n', "x", "  b0: x\n").replace(
        "run: {name: 'x'}\nx:", "policy: {type: '${oc.select:run.b25}'}\nrun:"
    ),
    "a chain": "run:\n  n0: x\n" + "".join(f"  n{i}: ${{run.n{i - 1}}}\n" for i in range(1, 999)),
    "nested lists": "a: " + "[" * 20_000,
    "nested mappings": "a: " + "{a: " * 5_000,
    "a million lines": "- a\n" * 10**6,
}


@pytest.mark.parametrize("name", YAML)
def test_yaml(name, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"env: {{id: CartPole-v1}}\n{YAML[name]}")
    for read, key in ((compose, "run.max_steps"), (compose_fit, "runner.output_dir")):
        said = outcome(lambda read=read, key=key: read(path, [f"{key}=1"]))
        assert said.startswith(("the config", "the interpolations")), said


def test_honest_yaml(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "runner: {output_dir: out, experiment_name: &name x}\n"
        "reward: {save_dir: '${runner.output_dir}/${runner.experiment_name}/*', "
        "data: {positive_dir: *name}}"
    )
    config = compose_fit(path)
    assert config.reward.save_dir == "out/x/*"
    assert config.reward.data.positive_dir == "x"


BINARY = '!!binary "aGVsbG8="'


@pytest.mark.parametrize(
    "text",
    [
        f"seed: {BINARY}",
        f"env: {{id: CartPole-v1, kwargs: {{a: [{BINARY}]}}}}",
        f"? {BINARY}\n: 1",
        f"env: {{id: CartPole-v1, kwargs: {{? {BINARY} : 1}}}}",
    ],
)
def test_bytes_in_yaml(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    for read in (compose, compose_fit):
        assert "has bytes (!!binary): write text or a number" in outcome(
            lambda read=read: read(path)
        )


# --- text files


HUGE = {
    "latest": lambda path: load_checkpoint(path.parent),
    "manifest.json": lambda path: load_checkpoint(path.parents[1], strict=True),
    "log.txt": lambda path: write_report(path.parent),
    "run.json": lambda path: RunFolder(path.parent).starts(),
    "summary.json": lambda path: read_json(path),
    "metrics.jsonl": lambda path: read_metrics(path.parent),
    "preferences.jsonl": load_preferences,
    "meta.json": lambda path: ReplayBuffer(8, storage=f"disk:{path.parent}"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder)
    return folder


@pytest.mark.parametrize("name", HUGE)
def test_a_text_file_of_3_gib(name, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    path = next((tmp_path / "run").rglob(name), tmp_path / name)
    with path.open("wb") as file:
        file.truncate(3 << 30)

    def read():
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            HUGE[name](path)
        raise DamagedError(str(warned[0].message))  # without some files a run can be read

    said = outcome(read)
    assert str(path) in said
    assert "damaged" in said or "bytes" in said


def test_long_files_of_lines_are_read(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 999 + b"\n" + b"y")
    assert [*read_lines(path)] == [b"x" * 999 + b"\n", b"y"]


# --- JSON


def test_json():
    deep = "[" * (DEPTH + 1) + "]" * (DEPTH + 1)
    for text in (deep, "[" * 10**6, '{"a":' * 10**5, "1" * 10**5, b"\xff", "{"):
        with pytest.raises(DamagedError, match=r"x\.json is not valid JSON"):
            parse_json(text, "x.json")
    assert parse_json(deep[1:-1], "x.json") is not None


@pytest.mark.parametrize(
    "space",
    [
        {"type": "Box", "shape": [10**5, 10**5], "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [2**62, 4], "dtype": "float32", "low": 0, "high": 1},
        {
            "type": "Tuple",
            "spaces": [{"type": "Box", "shape": [10**7], "dtype": "float32", "low": 0, "high": 1}]
            * 30,
        },
    ],
)
def test_spaces(space):
    assert "this is not a space written by guerdon" in outcome(lambda: space_from_json(space))


def test_honest_spaces():
    video = {"type": "Box", "shape": [4, 3, 1080, 1920], "dtype": "uint8", "low": 0, "high": 255}
    assert space_from_json(video).shape == (4, 3, 1080, 1920)


# --- anything but files


@pytest.mark.parametrize("kind", KINDS)
def test_pipes_are_not_waited_for(kind, tmp_path):
    """Nobody writes to them."""
    good, case = tmp_path / "good", tmp_path / "case"
    good.mkdir()
    KINDS[kind].make(good)
    names = [path.relative_to(good) for path in good.rglob("*") if path.is_file()]

    def read(name):
        fresh_copy(good, case)
        (case / name).unlink()
        os.mkfifo(case / name)
        KINDS[kind].read(case)

    for name in names:
        outcome(lambda name=name: read(name))


def test_other_files(tmp_path):
    for path in (tmp_path, tmp_path / "none", "/dev/zero"):
        with pytest.raises(OSError, match=r"not a regular file|No such file"):
            read_bytes(path)
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(DamagedError, match="a has 5 bytes, but at most 4 are read"):
        read_bytes(tmp_path / "a", 4)


# --- files of torch.save


def saved(path, content):
    """A file of ``torch.save`` with this pickle."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", content)
    return path


WEIGHTS = {
    "a key of 2 ** 352 parts": HEAD + PICKLES["a key of 2 ** 352 parts"] + STOP,
    "nested lists": HEAD + PICKLES["nested lists"] + STOP,
    "a storage that is not there": pickle.dumps({"a": 1})[:-1] + b"Q.",
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_files_of_torch(name, tmp_path):
    path = saved(tmp_path / "a.pt", WEIGHTS[name])
    assert outcome(lambda: load_weights(path)) == f"{path} is not a file of torch.save, or damaged"


def test_a_file_of_torch_that_is_compressed_or_has_huge_tensors(tmp_path):
    torch.save(torch.zeros(1).expand(10**9), tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    os.mkfifo(tmp_path / "c.pt")
    for name in "abc":
        said = outcome(lambda name=name: load_weights(tmp_path / f"{name}.pt"))
        assert "or damaged" in said or "not a regular file" in said


def test_honest_files_of_torch(tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    state = network.state_dict()
    shared = torch.arange(12.0).reshape(3, 4)
    content = {
        "state": state,
        "views": [shared, shared[1:], shared.T],
        "step": 3,
        "half": shared.bfloat16(),
    }
    torch.save(content, tmp_path / "a.pt")
    found = load_weights(tmp_path / "a.pt")
    assert all(found["state"][name].equal(value) for name, value in state.items())
    assert all(map(torch.equal, found["views"], content["views"]))
    assert found["half"].equal(content["half"])
