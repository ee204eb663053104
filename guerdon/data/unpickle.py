"""Loads pickles of plain data without running code in them."""

import io
import math
import pathlib
import pickle
import re
import zipfile
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch

from guerdon.limits import Budget, read_bytes

_REFUSED_OPCODES = (
    *("PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"),
    *("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
)
_LEAVES = (type(None), int, float, complex, str, bytes, bytearray)
_KEYS = (type(None), int, float, str, bytes, np.integer, np.floating, np.bool_)
_TUPLE_KEY = 200, 32  # values that one is worth in the budget, and its maximum length
_HASHING_OPCODES = {  # those that hash, with the type of their target and where the keys are
    "SETITEM": (dict, slice(-2, -1)),
    "SETITEMS": (dict, slice(None, None, 2)),
    "DICT": (None, slice(None, None, 2)),
    "ADDITEMS": (set, slice(None)),
    "FROZENSET": (None, slice(None)),
}
_NDARRAY, _FACTORY = object(), object()  # placeholders of classes that are never called
_STORAGES = {
    f"{name}Storage": getattr(torch, dtype)
    for name, dtype in [
        *[("Float", "float32"), ("Double", "float64"), ("Half", "float16")],
        *[("BFloat16", "bfloat16"), ("Long", "int64"), ("Int", "int32"), ("Short", "int16")],
        *[("Char", "int8"), ("Byte", "uint8"), ("Bool", "bool")],
        *[("ComplexFloat", "complex64"), ("ComplexDouble", "complex128")],
    ]
}


class UnsafePickleError(ValueError):
    """Raised if a pickle contains anything but plain data."""


def safe_unpickle(source: str | pathlib.Path | bytes) -> Any:
    """Load a pickle of containers, numbers, strings, NumPy arrays and PyTorch tensors.

    Ordered and default dictionaries are returned as dictionaries, deques as lists, and tensors on
    the CPU without ``requires_grad``. ``source`` is the path of the file, or its content as bytes.
    Keys of dictionaries and elements of sets are numbers, text, and short tuples of these.

    Raises:
        UnsafePickleError: If the pickle contains anything else, such as another class or function.
        ValueError: If the pickle is damaged, contains itself or more than its size allows (see
            `guerdon.limits`), or if the file is not a pickle.
    """
    data = source if isinstance(source, bytes) else read_bytes(source)
    name = "the pickle" if isinstance(source, bytes) else str(source)
    file = io.BytesIO(data)
    try:
        if not data.endswith(pickle.STOP):
            raise ValueError("it does not end like a pickle")
        value = _Unpickler(file, len(data)).load()
        if file.tell() != len(data):
            raise ValueError("it has several pickles; write all episodes as one list")
        Budget(len(data)).spend(*_weight(value, {})[:2])
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{name} {error}") from None
    except Exception as error:  # a damaged pickle can raise any exception
        reason = error if isinstance(error, ValueError) else "its content cannot be read"
        raise ValueError(f"{name} is damaged or not a pickle: {reason}") from error
    return value


def load_weights(path: str | pathlib.Path) -> Any:
    """Load a file that ``torch.save`` wrote; see `safe_unpickle`."""
    data, storages = read_bytes(path), dict[str, torch.Tensor]()

    def storage(pid: tuple[Any, ...]) -> torch.Tensor:
        _, dtype, key, _, number = pid
        if key not in storages:
            content = archive.read(f"{pickled.removesuffix('.pkl')}/{key}")
            storages[key] = unpickler._paid(_flat(content, dtype, number))
        return storages[key]

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ValueError("it is compressed")
            (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            unpickler: Any = _StorageUnpickler(io.BytesIO(archive.read(pickled)), len(data))
            unpickler.persistent_load = storage
            value = unpickler.load()
            Budget(len(data)).spend(*_weight(value, {})[:2])
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{path} {error}") from None
    except Exception as error:  # a damaged file can raise any exception
        raise ValueError(f"{path} is not a file of torch.save, or damaged") from error
    return value


def _refuse(what: str, *_: Any) -> NoReturn:
    known = "only arrays, tensors, numbers, text and plain containers are read from a pickle"
    raise UnsafePickleError(f"asks for {what}, which guerdon does not run: {known}")


def _weight(value: Any, known: dict[int, Any], depth: int = 0) -> tuple[int, int, int]:
    """Return the values, bytes and depth of plain data, in which every use of a value counts.

    Raise an error for anything else, such as an allowed function. ``known`` has the results by id.
    """
    if isinstance(value, np.ndarray | np.generic | torch.Tensor) and value.dtype != object:
        return 1, math.prod(n or 1 for n in value.shape) * int(value.itemsize), 0
    if isinstance(value, _LEAVES):
        return 1, len(value) if isinstance(value, str | bytes | bytearray) else 8, 0
    weight: tuple[int, int, int] | None = known.get(id(value), (0, 0, 0))
    if weight is None:
        raise ValueError("it has a container that contains itself")
    Budget().spend(depth=depth + weight[2])
    if weight[0]:
        return weight
    known[id(value)] = None
    items: Any = value
    if isinstance(value, np.ndarray):
        items = value.ravel().tolist()
    elif isinstance(value, dict):
        items = (*value, *value.values())
    elif not isinstance(value, list | tuple | set | frozenset):
        _refuse(f"a value of type {type(value).__name__}")
    nodes, memory, height = 1, 8 * len(items), 0
    for item in items:
        more = _weight(item, known, depth + 1)
        nodes, memory, height = nodes + more[0], memory + more[1], max(height, more[2] + 1)
    known[id(value)] = nodes, memory, height
    return nodes, memory, height


def _hashing(op: str, target: type | None, where: slice) -> Any:
    """Return an opcode that checks keys before it hashes them."""
    load = pickle._Unpickler.dispatch[getattr(pickle, op)[0]]

    def checked(self: Any) -> None:
        holder = self.stack[-3] if op == "SETITEM" else self.metastack[-1][-1] if target else None
        if target and type(holder) is not target:
            raise ValueError(f"it has entries for something else than a {target.__name__}")
        self._check_keys(self.stack[where])
        load(self)

    return checked


class _Memo(dict[Any, Any]):
    """Objects that a pickle uses again, by their keys; and the newest key of each, by its id."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[int, Any] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.newest[id(value)] = key


class _Unpickler(pickle._Unpickler):
    """Python's pure-Python unpickler, whose opcodes can be replaced."""

    def __init__(self, file: io.BytesIO, size: int) -> None:
        super().__init__(file, encoding="latin1")  # keeps the bytes that Python 2 wrote
        self.memo: Any = _Memo()
        self._budget = Budget(size)
        self._arrays: dict[int, tuple[Any, int]] = {}  # of objects, with their depth

    def find_class(self, module: str, name: str) -> Any:
        known = module.replace("__builtin__", "builtins").replace("numpy.core.", "numpy._core.")
        return _ALLOWED.get((known, name)) or _refuse(f"{module}.{name}")

    def _reduce(self: Any) -> None:
        """Call an allowed function."""
        arguments, function = self.stack.pop(), self.stack[-1]
        if function in (dict, set, frozenset) and arguments:
            if type(arguments[0]) is not list:
                raise ValueError("it has a container that is not made of a list")
            pairs = function is dict
            self._check_keys([item[0] for item in arguments[0]] if pairs else arguments[0])
        self.stack[-1] = self._paid(function(*arguments))

    def _build(self: Any) -> None:
        """Replace an array or dtype by a new one; no state is set on any object."""
        state, old = self.stack.pop(), self.stack[-1]
        if isinstance(old, np.ndarray):
            shape, dtype, fortran, raw = state[-4:]
            new: Any = self._paid(_array(raw, dtype, shape, "F" if fortran else "C"))
        elif type(old) is type(state) is dict and state.keys() == {"_metadata"}:
            return  # of a state_dict(); left out
        elif isinstance(old, np.dtype) and len(state) <= 8 and state[2:5] == (None, None, None):
            new = old.newbyteorder(state[1])  # a dtype without subarray, names and fields
        else:
            _refuse(f"a change to an object of type {type(old).__name__}")
        self.stack[-1] = new
        key = self.memo.newest.get(id(old))
        if self.memo.get(key) is old:
            self.memo[key] = new

    def _paid(self, value: Any) -> Any:
        """Return a new value after paying for its bytes."""
        depth = 0
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            # Freeing arrays in arrays is recursive in C.
            depth = 1 + max(
                (self._arrays.get(id(item), (None, 0))[1] for item in value.flat), default=0
            )
            self._arrays[id(value)] = value, depth
        size = getattr(value, "nbytes", None)
        self._budget.spend(
            memory=len(value) if size is None and hasattr(value, "__len__") else size or 0,
            depth=depth,
        )
        return value

    def _bytearray8(self: Any) -> None:  # Python allocates the size before reading
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    def _check_keys(self, keys: list[Any]) -> None:
        """Raise an error for keys whose hashes take long to compute or can be made to collide."""
        for key in keys:
            parts = key if type(key) is tuple else (key,)
            if len(parts) > _TUPLE_KEY[1] or not all(isinstance(part, _KEYS) for part in parts):
                raise ValueError("it has a key that is not a number, text or a short tuple of them")
            if any(isinstance(part, int) and part.bit_length() > 60 for part in parts):
                raise ValueError("it has a number of more than 60 bits as a key")
            if parts is key:
                self._budget.spend(nodes=_TUPLE_KEY[0])

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **{getattr(pickle, op)[0]: partial(_refuse, f"opcode {op}") for op in _REFUSED_OPCODES},
        **{getattr(pickle, op)[0]: _hashing(op, *where) for op, where in _HASHING_OPCODES.items()},
        pickle.REDUCE[0]: _reduce,
        pickle.BUILD[0]: _build,
        pickle.BYTEARRAY8[0]: _bytearray8,
    }


class _StorageUnpickler(_Unpickler):
    """Reads the header of a storage of PyTorch."""

    def find_class(self, module: str, name: str) -> Any:
        return (
            _STORAGES[name]
            if module == "torch" and name in _STORAGES
            else super().find_class(module, name)
        )

    def persistent_load(self, pid: Any) -> Any:
        return pid

    dispatch: ClassVar[dict[int, Any]] = {
        **_Unpickler.dispatch,
        pickle.BINPERSID[0]: pickle._Unpickler.dispatch[pickle.BINPERSID[0]],
    }


def _bytes(raw: Any = b"", encoding: str = "latin1") -> Any:
    if type(raw) not in (str, bytes, bytearray) or encoding not in ("latin1", "latin-1"):
        raise ValueError("it has bytes of another type or encoding")
    return raw.encode("latin1") if type(raw) is str else raw  # older protocols store text


def _dtype(code: str, *_: Any) -> np.dtype[Any]:
    if not re.fullmatch(r"[biufc]\d{1,2}|O8?|[SU]\d{1,8}", code):
        raise ValueError("it has structured arrays, dates or other types that are not read")
    return np.dtype(code, copy=True)


def _array(raw: Any, dtype: Any, shape: Any, order: Any = "C", axes: Any = None) -> Any:
    """Return an array with a copy of the bytes, or with the objects of a list."""
    if dtype.hasobject:
        if type(raw) is not list:  # bytes would be used as pointers
            raise ValueError("it has an array of objects that are not in a list")
        return np.fromiter(raw, object, len(raw)).reshape(shape, order=order)
    content = bytearray(_bytes(raw))
    array = np.ndarray(shape, dtype, content, order="C" if axes else order)
    if array.nbytes != len(content):
        raise ValueError("it has an array whose bytes do not fill its shape")
    return array.transpose(axes) if axes else array


def _storage(raw: bytes) -> torch.Tensor:
    """Return the storage of a tensor, as ``torch.save`` wrote it into pickles, as a flat tensor."""
    file = io.BytesIO(_bytes(raw))
    try:
        parts = [_StorageUnpickler(file, len(raw)).load() for _ in range(5)]
        _, dtype, _, _, number, *_ = parts[3]
        if int.from_bytes(file.read(8), "little") != number:
            raise ValueError("it has two numbers of elements")
        return _flat(file.read(), dtype, number)
    except UnsafePickleError:
        raise
    except Exception as error:
        raise ValueError("it has a tensor that cannot be read") from error


def _flat(content: bytes, dtype: torch.dtype, number: int) -> torch.Tensor:
    if len(content) != number * dtype.itemsize:
        raise ValueError("the bytes of a tensor do not fill it")
    return (
        torch.frombuffer(bytearray(content), dtype=dtype)
        if content
        else torch.empty(0, dtype=dtype)
    )


_ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("builtins", "bytearray"): lambda *raw: bytearray(_bytes(*raw)),
    **{("builtins", kind.__name__): kind for kind in (complex, frozenset, set)},
    ("collections", "OrderedDict"): dict,
    ("collections", "defaultdict"): lambda _factory=None: {},
    ("collections", "deque"): lambda items=(), _length=None: list(items),
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy._core.multiarray", "_reconstruct"): lambda kind, *_: (
        np.empty(0) if kind is _NDARRAY else _refuse("an array of another class")
    ),
    ("numpy._core.multiarray", "scalar"): lambda dtype, raw: _array(raw, dtype, ())[()],
    ("numpy._core.numeric", "_frombuffer"): _array,
    ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, size, stride, _grad, _hooks: (
        storage.as_strided(size, stride, offset)  # an error if it is not inside of the storage
    ),
    ("torch.storage", "_load_from_bytes"): _storage,
    **{("builtins", name): _FACTORY for name in ("bool", "dict", "float", "int", "list", "str")},
}
