"""Loads pickles of plain data without running code in them."""

import io
import math
import pathlib
import pickle
import re
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch

_REFUSED_OPCODES = (
    *("PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"),
    *("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
)
_LEAVES = (type(None), int, float, complex, str, bytes, bytearray, np.generic, torch.Tensor)
_NDARRAY, _FACTORY = object(), object()  # placeholders of classes that are never called


class UnsafePickleError(ValueError):
    """Raised if a pickle contains anything but plain data."""


def safe_unpickle(source: str | pathlib.Path | bytes) -> Any:
    """Load a pickle of containers, numbers, strings, NumPy arrays and PyTorch tensors.

    Ordered and default dictionaries are returned as dictionaries, deques as lists, and tensors on
    the CPU without ``requires_grad``. ``source`` is the path of the file, or its content as bytes.

    Raises:
        UnsafePickleError: If the pickle contains anything else, such as another class or function.
        ValueError: If the pickle is damaged, or the file is not a pickle.
    """
    data = source if isinstance(source, bytes) else pathlib.Path(source).read_bytes()
    name = "the pickle" if isinstance(source, bytes) else str(source)
    file = io.BytesIO(data)
    try:
        if not data.endswith(pickle.STOP):
            raise ValueError("it does not end like a pickle")
        value = _Unpickler(file, encoding="latin1").load()  # keeps the bytes that Python 2 wrote
        if file.tell() != len(data):
            raise ValueError("it has several pickles; write all episodes as one list")
        _check_plain(value, set())
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{name} {error}") from None
    except Exception as error:  # a damaged pickle can raise any exception
        reason = error if isinstance(error, ValueError) else "its content cannot be read"
        raise ValueError(f"{name} is damaged or not a pickle: {reason}") from error
    return value


def load_weights(path: str | pathlib.Path) -> Any:
    """Load a file that `torch.save` wrote, with PyTorch's loader of tensors and plain values.

    Raises:
        UnsafePickleError: If the file contains anything else, such as a class or function.
        ValueError: If it is damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except Exception as error:  # a damaged file can raise any exception
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise UnsafePickleError(
                f"{path} asks for {found[1]}, which guerdon does not run: save its state_dict()"
            ) from None
        raise ValueError(f"{path} is not a file of torch.save, or damaged") from error


def _refuse(what: str, *_: Any) -> NoReturn:
    known = "only arrays, tensors, numbers, text and plain containers are read from a pickle"
    raise UnsafePickleError(f"asks for {what}, which guerdon does not run: {known}")


def _check_plain(value: Any, seen: set[int]) -> None:
    """Raise an error if a value contains anything but plain data, such as an allowed function."""
    if math.prod(n or 1 for n in getattr(value, "shape", ())) > 2**32:
        raise ValueError("it has an array or tensor with an invalid shape")
    if isinstance(value, _LEAVES) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist() if value.dtype.hasobject else ()
    elif not isinstance(value, list | tuple | set | frozenset | dict):
        _refuse(f"a value of type {type(value).__name__}")
    for item in (*value, *value.values()) if isinstance(value, dict) else value:
        _check_plain(item, seen)


class _Unpickler(pickle._Unpickler):
    """Python's pure-Python unpickler, whose BUILD opcode can be replaced."""

    def find_class(self, module: str, name: str) -> Any:
        known = module.replace("__builtin__", "builtins").replace("numpy.core.", "numpy._core.")
        return _ALLOWED.get((known, name)) or _refuse(f"{module}.{name}")

    def _build(self: Any) -> None:
        """Replace an array or dtype by a new one; no state is set on any object."""
        state, old = self.stack.pop(), self.stack[-1]
        if isinstance(old, np.ndarray):
            shape, dtype, fortran, raw = state[-4:]
            new: Any = _array(raw, dtype, shape, "F" if fortran else "C")
        elif isinstance(old, np.dtype) and len(state) <= 8 and state[2:5] == (None, None, None):
            new = old.newbyteorder(state[1])  # a dtype without subarray, names and fields
        else:
            _refuse(f"a change to an object of type {type(old).__name__}")
        self.stack[-1] = new
        for key, value in reversed(self.memo.items()):
            if value is old:
                self.memo[key] = new
                break

    def _bytearray8(self: Any) -> None:  # Python allocates the size before reading
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **{getattr(pickle, op)[0]: partial(_refuse, f"opcode {op}") for op in _REFUSED_OPCODES},
        pickle.BUILD[0]: _build,
        pickle.BYTEARRAY8[0]: _bytearray8,
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
    """Load the storage of a tensor with the safe loader of PyTorch, as a flat tensor."""
    try:
        storage = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
        return torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage)
    except Exception as error:
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            _refuse(found[1])
        raise ValueError("it has a tensor that PyTorch cannot read") from error


_ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("builtins", "bytearray"): lambda *raw: bytearray(_bytes(*raw)),
    ("builtins", "complex"): complex,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "set"): set,
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
