import collections
import contextlib
import copyreg
import io
import os
import pickle
import pickletools
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.data.unpickle import UnsafePickleError, safe_unpickle

PROTOCOLS = [2, 3, 4, 5]


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *args, state=None):
        self.parts = (function, args) if state is None else (function, args, state)

    def __reduce__(self):
        return self.parts

    def __repr__(self):  # the same in every process, since tests are named by it
        return f"{self.parts[0].__name__}()"


def marking(folder):
    return Call(os.system, f"touch {folder / 'marker'}")


def same(left, right):
    if isinstance(left, torch.Tensor):
        return (
            type(right) is torch.Tensor and left.dtype == right.dtype and torch.equal(left, right)
        )
    if isinstance(left, np.ndarray | np.generic):
        return (
            type(left) is type(right)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and np.array_equal(left, right)
        )
    if isinstance(left, list | tuple):
        return type(left) is type(right) and all(map(same, left, right)) and len(left) == len(right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


GOOD = {
    "transitions": [
        {
            "obs": np.random.default_rng(0).normal(size=4).astype("f4"),
            "act": np.int64(i),
            "rew": 1.0,
        }
        for i in range(3)
    ],
    "plain": [None, True, 3, 10**40, -2.5, 1 + 2j, "é", b"\x00\xff", b"", bytearray(b"ab")],
    "containers": [(), (1, (2, [3])), {1, 2}, frozenset({3}), {"a": {"b": []}}, {(1, "x"): 2}],
    "scalars": [np.float32(1.5), np.int64(3), np.bool_(True), np.str_("abc"), {np.int64(1): 2}],
    "arrays": [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::3],
        np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        np.arange(24).reshape(2, 3, 4)[:, ::-1].transpose(1, 2, 0),
        np.zeros((0, 3), "f4"),
        np.array(7),
        np.array([1, 2], ">i4"),
        np.array([True, False]),
        np.array(["ab", "c"]),
        np.array([1 + 1j], "c8"),
        np.array([["a", None], [1.5, np.float32(2)]], dtype=object),
        np.array([None] * 2000),
    ],
    "tensors": [
        {"obs": torch.arange(3.0), "act": torch.tensor(1), "done": torch.tensor([True, False])},
        torch.arange(6).reshape(2, 3).t(),
        torch.arange(6)[2:4],
        torch.zeros(0, 3),
        torch.randn(3, dtype=torch.bfloat16),
        torch.randn(2, dtype=torch.float64),
        torch.tensor([1, 2], dtype=torch.uint8),
    ],
}


@pytest.mark.parametrize("protocol", [0, 1, *PROTOCOLS])
@pytest.mark.parametrize("name", GOOD)
def test_data_comes_back(tmp_path, name, protocol):
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps(GOOD[name], protocol))
    read = safe_unpickle(path)
    assert same(GOOD[name], read)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_special_containers_come_back_plain(protocol):
    data = [
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, x=[1]),
        collections.deque([1, np.ones(2)], maxlen=3),
    ]
    ordered, default, queue = safe_unpickle(pickle.dumps(data, protocol))
    assert type(ordered) is dict
    assert list(ordered) == ["b", "a"]
    assert default == {"x": [1]}
    assert type(default) is dict
    assert queue[0] == 1
    assert same(queue[1], np.ones(2))


def test_items_given_as_arguments_are_kept():
    # As Python 2 pickled them.
    data = [Call(collections.OrderedDict, [["b", 1], ["a", 2]]), Call(collections.deque, [1], 3)]
    assert safe_unpickle(pickle.dumps(data)) == [{"b": 1, "a": 2}, [1]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_shared_stays_shared(protocol):
    array = np.arange(3)
    read = safe_unpickle(pickle.dumps([array, array], protocol))
    assert read[0] is read[1]
    assert read[0].flags.writeable
    loop = [array]
    loop.append(loop)
    with pytest.raises(ValueError, match=r"damaged .* a container that contains itself"):
        safe_unpickle(pickle.dumps(loop, protocol))


def test_names_of_older_numpy_are_known():
    data = pickle.dumps(np.arange(3), 2)
    assert b"numpy._core.multiarray" in data
    old = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert same(safe_unpickle(old), np.arange(3))


@pytest.mark.parametrize("protocol", [0, 1, *PROTOCOLS])
def test_a_pickle_with_few_memo_entries_is_read(protocol):
    # A dtype is replaced when its byte order is known, in the memo too, but only where it is there.
    data = [np.arange(3), np.arange(3, dtype=">i8"), np.arange(3), np.arange(2, dtype=">i8")]
    assert same(safe_unpickle(pickletools.optimize(pickle.dumps(data, protocol))), data)


def test_a_gradient_flag_is_dropped():
    read = safe_unpickle(pickle.dumps(torch.ones(2, requires_grad=True)))
    assert not read.requires_grad


# --- what must not run


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda bad: bad,
        lambda bad: [1, {"obs": [bad]}],
        lambda bad: np.array([None, bad], dtype=object),
        lambda bad: {"x": (bad,)},
        lambda bad: collections.OrderedDict(x=bad),
        lambda bad: Call(collections.defaultdict, bad),
    ],
    ids=["bare", "nested", "object array", "tuple", "ordered", "argument"],
)
def test_code_is_refused_by_name(tmp_path, wrap, protocol):
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps(wrap(marking(tmp_path)), protocol))
    with pytest.raises(UnsafePickleError, match=r"bad\.pkl asks for (posix|nt)\.system, which gue"):
        safe_unpickle(path)
    assert not (tmp_path / "marker").exists()
    with contextlib.suppress(TypeError):  # the marker tells: this is what it would have done
        pickle.loads(path.read_bytes())
    assert (tmp_path / "marker").exists()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (eval, ("1 + 1",)),
        (exec, ("1",)),
        (getattr, ("x", "upper")),
        (open, ("/etc/passwd",)),
        (__import__, ("os",)),
        (copyreg._reconstructor, (list, object, None)),
        (io.FileIO, ("/etc/passwd",)),
        (np.load, ("x.npy",)),
        (np.fromfile, ("x.npy",)),
        (torch.load, ("x.pt",)),
        (torch.zeros, (3,)),
        (torch.UntypedStorage, (10**12,)),
        (type, ("X", (), {})),
        (map, (print, [1])),
        (range, (10,)),
        (collections.namedtuple, ("X", "y")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_functions_are_refused(function, args, protocol):
    with pytest.raises(UnsafePickleError, match=r"asks for .*, which guerdon does not run"):
        safe_unpickle(pickle.dumps([Call(function, *args)], protocol))


class Custom:
    pass


def test_objects_of_other_classes_are_refused():
    with pytest.raises(UnsafePickleError, match=r"asks for .*\.Custom"):
        safe_unpickle(pickle.dumps([Custom()]))
    for value in (
        torch.nn.Parameter(torch.ones(2)),
        torch.nn.Linear(1, 1),
        np.random.default_rng(),
    ):
        with pytest.raises(UnsafePickleError):
            safe_unpickle(pickle.dumps(value))


def storage_bytes(tensor):
    buffer = io.BytesIO()
    storage = torch.storage.TypedStorage(
        wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype, _internal=True
    )
    torch.save(storage, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def tensor_call(payload, offset=0, size=(3,), stride=(1,)):
    storage = Call(torch.storage._load_from_bytes, payload)
    hooks = collections.OrderedDict()
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, hooks)


def test_the_forged_tensor_of_these_tests_is_a_tensor():
    data = pickle.dumps(tensor_call(storage_bytes(torch.arange(3.0))))
    assert same(safe_unpickle(data), torch.arange(3.0))
    assert same(pickle.loads(data), torch.arange(3.0))


def test_a_tensor_of_a_gpu_is_read_on_the_cpu():
    payload = storage_bytes(torch.arange(3.0))
    gpu = payload.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    assert gpu != payload
    read = safe_unpickle(pickle.dumps(tensor_call(gpu)))
    assert same(read, torch.arange(3.0))
    assert read.device.type == "cpu"


@pytest.mark.parametrize("part", range(5))
def test_code_inside_a_tensor_is_refused(tmp_path, part):
    whole = storage_bytes(torch.arange(3.0))
    bad = pickle.dumps(marking(tmp_path), 2)
    stream = io.BytesIO(whole)
    cuts = [0]
    for _ in range(5):
        unpickler = pickle.Unpickler(stream)
        unpickler.persistent_load = lambda pid: pid
        unpickler.load()
        cuts.append(stream.tell())
    payload = whole[: cuts[part]] + bad + whole[cuts[part + 1] :]
    for data in (tensor_call(payload), [tensor_call(bad)]):
        with pytest.raises(UnsafePickleError, match=r"\.system"):
            safe_unpickle(pickle.dumps(data))
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "view",
    [
        {"size": (4,)},
        {"offset": 1},
        {"offset": -1},
        {"stride": (2,)},
        {"stride": (-1,)},
        {"size": (2, 2)},
        {"size": (10**15,), "stride": (0,)},
        {"size": (0, 10**12), "stride": (1, 1)},
        {"stride": (2**62,)},
        {"offset": 2**62},
    ],
    ids=str,
)
def test_a_tensor_stays_inside_its_storage(view):
    with pytest.raises(ValueError, match="damaged"):
        safe_unpickle(pickle.dumps(tensor_call(storage_bytes(torch.arange(3.0)), **view)))


def test_a_storage_stays_inside_its_bytes():
    payload = storage_bytes(torch.arange(3.0))
    count = payload.rindex(struct.pack("<q", 3))
    forged = payload[:count] + struct.pack("<q", 10**12) + payload[count + 8 :]
    with pytest.raises(ValueError, match=r"damaged .* tensor that cannot be read"):
        safe_unpickle(pickle.dumps(tensor_call(forged)))


def test_a_lazily_conjugated_tensor_is_not_read_as_another():
    with pytest.raises(ValueError, match="damaged"):
        safe_unpickle(pickle.dumps(torch.tensor([1 + 2j]).conj()))


def reconstruct(state, kind=np.ndarray):
    return Call(np.zeros(1).__reduce__()[0], kind, (0,), b"b", state=state)


def dtype(code, *state):
    return Call(np.dtype, code, False, True, state=state)


FLOAT = ("<", None, None, None, -1, -1, 0)


def test_the_forged_array_of_these_tests_is_an_array():
    state = (1, (2,), dtype("f8", 3, *FLOAT), False, bytes(16))
    assert same(safe_unpickle(pickle.dumps(reconstruct(state))), np.zeros(2))


@pytest.mark.parametrize("kind", [list, np.dtype, np.matrix, Custom, collections.OrderedDict])
def test_an_array_is_of_no_other_class(kind):
    state = (1, (2,), dtype("f8", 3, *FLOAT), False, bytes(16))
    with pytest.raises(UnsafePickleError):
        safe_unpickle(pickle.dumps(reconstruct(state, kind)))


@pytest.mark.parametrize(
    "state",
    [
        (1, (10**12,), dtype("f8", 3, *FLOAT), False, bytes(16)),
        (1, (-2,), dtype("f8", 3, *FLOAT), False, bytes(16)),
        (1, (0, 10**12), dtype("f8", 3, *FLOAT), False, b""),
        (1, (2,), dtype("f8", 3, *FLOAT), False, [1, 2]),
        (1, (2,), dtype("O8", 3, "|", None, None, None, -1, -1, 63), False, bytes(16)),
        # Bytes that NumPy would use as two pointers; the first without the flags of objects.
        (1, (2,), dtype("O8", 3, "|", None, None, None, -1, -1, 0), False, b"A" * 16),
        (
            1,
            (2,),
            dtype("V8", 3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0),
            False,
            b"A" * 16,
        ),
        (
            1,
            (2,),
            dtype("f8", 3, "<", (np.dtype("O"), (1,)), None, None, 8, 8, 0),
            False,
            bytes(16),
        ),
        (1, (2,), np.dtype("datetime64[s]"), False, bytes(16)),
        (1, (2,), "f8", False, bytes(16)),
        (1, (2,), [], False, bytes(16)),
        (1, 2, dtype("f8", 3, *FLOAT), False, bytes(24)),
        (),
    ],
    ids=str,
)
def test_forged_arrays_are_refused(state):
    with pytest.raises(ValueError, match=r"damaged or not a pickle|asks for a change to .*DType"):
        safe_unpickle(pickle.dumps([reconstruct(state)]))


@pytest.mark.parametrize(
    "value",
    [
        Call(np.ndarray, (10**9,)),
        Call(bytes, 10**12),
        Call(bytearray, 10**12),
        Call(list, "ab"),
        Call(str, b"x", "utf8"),
        Call(int, "9" * 10**5),
        np.ndarray,
        list,
        np.dtype("f4"),
        Call(np.dtype, [("a", "O")]),
        Call(collections.deque, state={"append": 1}),
        Call(collections.OrderedDict, state={"update": 1}),
        Call(set, state={"add": 1}),
        Call(np._core.multiarray.scalar, np.dtype("O"), bytes(8)),
        Call(np._core.numeric._frombuffer, bytes(8), np.dtype("O"), (1,), "C"),
    ],
    ids=repr,
)
def test_allowed_names_do_no_more_than_they_must(value):
    with pytest.raises(ValueError, match=r"the pickle (asks for|is damaged)"):
        safe_unpickle(pickle.dumps([value]))


def test_tensors_cannot_be_changed():
    # The state of a tensor could replace its storage.
    tensor = tensor_call(storage_bytes(torch.arange(3.0)))
    tensor.parts += ((tensor.parts[1][0], 0, (10**6,), (1,)),)
    with pytest.raises(UnsafePickleError, match="asks for a change to an object of type Tensor"):
        safe_unpickle(pickle.dumps(tensor))


def test_names_cannot_be_changed():
    # GLOBAL, then BUILD with a state of attributes; plain functions would take it.
    for state in (b"}X\x04\x00\x00\x00nameK\x01s", b"N}X\x05\x00\x00\x00valueK\x01s\x86"):
        for name in (b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"cnumpy\nndarray\n"):
            with pytest.raises(UnsafePickleError, match="asks for a change to"):
                safe_unpickle(b"\x80\x02" + name + state + b"b.")
    assert same(safe_unpickle(pickle.dumps(np.arange(3))), np.arange(3))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02\x82\x01.",
        b"\x80\x02\x83\x01\x00.",
        b"\x80\x02\x84\x01\x00\x00\x00.",
        b"Pfile\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x05\x97.",
        b"\x80\x05N\x98.",
        b"(S'true'\niposix\nsystem\n.",
        b"(cbuiltins\nset\no.",
        b"\x80\x02cbuiltins\nset\n)\x81.",
        b"\x80\x04cbuiltins\nset\n)}\x92.",
    ],
)
def test_opcodes_that_reach_outside_or_make_objects_are_refused(data):
    with pytest.raises(UnsafePickleError, match=r"the pickle asks for opcode [A-Z]+"):
        safe_unpickle(data)


def test_the_extension_registry_is_not_used(tmp_path):
    copyreg.add_extension("posix", "system", 250)
    try:
        data = pickle.dumps(marking(tmp_path), 2)
        assert b"\x82\xfa" in data
        pickle.loads(b"\x80\x02\x82\xfa.")  # so that it is in the cache, which asks nobody
        with pytest.raises(UnsafePickleError, match="EXT1"):
            safe_unpickle(data)
    finally:
        copyreg.remove_extension("posix", "system", 250)
        copyreg.clear_extension_cache()
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo of two billion slots
        b"Np2147483647\n.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00.",  # a terabyte of bytes
        b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
        b"\x80\x02T\xff\xff\xff\xff.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\x00\x00\x00N.",
    ],
)
def test_sizes_beyond_the_file_are_not_allocated(data):
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError):
            assert safe_unpickle(data) is None
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def frame(content):
    return b"\x95" + struct.pack("<Q", len(content)) + content


@pytest.mark.parametrize(
    "data",
    [
        frame(b"NX\x02") + b"\x00\x00\x00ab0.",
        frame(b"NX\x02\x00\x00\x00a") + b"b0.",
        frame(b"cnumpy\nnd") + b"array\n.",
        frame(frame(b"N") + b"."),
        frame(b"N")[:-1],
    ],
)
def test_frames_hold_whole_opcodes(data):
    assert safe_unpickle(b"\x80\x04" + frame(b"N") + frame(b".")) is None
    with pytest.raises(ValueError, match="the pickle is damaged"):
        safe_unpickle(b"\x80\x04" + data)


# --- what is merely broken


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_truncated_pickle_names_its_file(tmp_path, protocol):
    whole = pickle.dumps(GOOD["transitions"] + GOOD["tensors"], protocol)
    path = tmp_path / "cut.pkl"
    for size in range(0, len(whole), 41):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"cut\.pkl is damaged or not a pickle"):
            safe_unpickle(path)


def test_other_files_are_told(tmp_path):
    path = tmp_path / "text.pkl"
    path.write_text("hello")
    with pytest.raises(ValueError, match=r"text\.pkl is damaged or not a pickle"):
        safe_unpickle(path)
    with pytest.raises(FileNotFoundError, match=r"none\.pkl"):
        safe_unpickle(tmp_path / "none.pkl")
    with pytest.raises(ValueError, match="has several pickles; write all episodes"):
        safe_unpickle(pickle.dumps(1) + pickle.dumps(2))


def test_nesting_without_end_is_an_error():
    with pytest.raises(ValueError, match="damaged"):
        safe_unpickle(b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".")


@settings(max_examples=300)
@given(st.data())
def test_changed_bytes_never_do_anything_else(data):
    whole = bytearray(pickle.dumps(GOOD, data.draw(st.sampled_from(PROTOCOLS))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        safe_unpickle(bytes(whole))
    except ValueError as error:
        assert str(error).startswith("the pickle")  # noqa: PT017 - it may also succeed
