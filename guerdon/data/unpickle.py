"""Reading pickles of other systems without running what is in them.

A pickle is a program. Three steps keep it from doing anything but describing data:

1. The opcodes are scanned: none may reach outside the file, no size may exceed it.
2. Python's unpickler runs them, but every name it finds leads to a stand-in of ours, which only
   notes down what was asked for.
3. The notes become arrays and tensors, once their sizes are held against each other and against
   the size of the file.
"""

import io
import math
import os
import pathlib
import pickle
import pickletools
import re
from collections.abc import Sized
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import torch

_READ = "only arrays, tensors, numbers, text and plain containers are read from a pickle"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, set, frozenset)
_EMPTY_LIMIT = 2**30  # numpy reserves memory for an empty array as if its zeros were ones

_CODES = {op.name: ord(op.code) for op in pickletools.opcodes}
_SIZES = {ord(op.code): op.arg.n if op.arg else 0 for op in pickletools.opcodes}
_OUTSIDE = {
    _CODES[name]: name
    for name in ("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER")
}
_CHECKED = (*_OUTSIDE, _CODES["STOP"], _CODES["FRAME"], _CODES["LONG_BINPUT"])
# How many bytes follow an opcode that needs no check; -1 is for the others.
_SIMPLE = [-1 if code in _CHECKED else _SIZES.get(code, -1) for code in range(256)]
_LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}

_STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ShortStorage": torch.int16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
_CARRIERS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64, 16: np.complex128}
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C


class UnsafePickleError(ValueError):
    """A pickle asks for more than data."""


def safe_unpickle(source: str | os.PathLike[str] | bytes) -> Any:
    """Reads a pickle of plain containers, numbers, text, numpy arrays and tensors.

    Ordered and default dictionaries come back as dictionaries, deques as lists, tensors on the CPU
    and without their gradient flag. A pickle that asks for anything else does not get it.

    Args:
        source: The file, or what would be in it.

    Raises:
        UnsafePickleError: The pickle asks for something that is not data.
        ValueError: It is damaged, or no pickle.
    """
    data = source if isinstance(source, bytes) else pathlib.Path(source).read_bytes()
    name = "the pickle" if isinstance(source, bytes) else os.fspath(source)
    try:
        reader = _Reader(len(data))
        value, end = reader.load(data)
        if end != len(data):
            raise ValueError("it goes on after its first pickle; write all episodes as one list")
        return reader.make(value)
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{name} {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{name} is damaged or no pickle: {error}") from error


def _refuse(what: str) -> NoReturn:
    raise UnsafePickleError(f"asks for {what}, which guerdon does not run: {_READ}")


def _scan(data: bytes, start: int, nested: bool) -> int:
    """Finds the end of a pickle that neither reaches outside itself nor claims more than it has."""
    position, end = start, len(data)
    limit, framed = end, False
    while True:
        if position >= limit:
            # What crosses the end of a frame, the unpickler reads differently from how we do here.
            if position > limit or not framed:
                raise ValueError("it ends too early")
            limit, framed = end, False
            continue
        code = data[position]
        position += 1
        size = _SIMPLE[code]
        if size >= 0:
            position += size
        elif code == _CODES["STOP"]:
            return position
        elif code == _CODES["FRAME"]:
            length, position = int.from_bytes(data[position : position + 8], "little"), position + 8
            if framed or position + length > end:
                raise ValueError("it has a frame that does not fit")
            limit, framed = position + length, True
        else:
            position = _scan_argument(data, position, code, nested)


def _scan_argument(data: bytes, start: int, code: int, nested: bool) -> int:
    """Checks one opcode with what follows it, and says where that ends."""
    if code not in _SIZES:
        raise ValueError(f"byte {code:#04x} is no opcode")
    if code in _OUTSIDE and not (nested and _OUTSIDE[code] == "BINPERSID"):
        _refuse(f"what is outside the file (opcode {_OUTSIDE[code]})")
    size, end = _SIZES[code], start
    if size >= 0:
        end += size
    elif size == pickletools.UP_TO_NEWLINE:
        for _ in range(2 if code in (_CODES["GLOBAL"], _CODES["INST"]) else 1):
            end = data.index(b"\n", end) + 1
    else:
        width = _LENGTH_BYTES[size]
        end += width + int.from_bytes(data[start : start + width], "little")
    if code == _CODES["LONG_BINPUT"]:
        _check_slot(int.from_bytes(data[start:end], "little"), len(data))
    elif code == _CODES["PUT"]:
        _check_slot(int(data[start:end]), len(data))
    return end


def _check_slot(slot: int, size: int) -> None:
    # The unpickler allocates memo slots up to the highest number it is given.
    if slot > size:
        raise ValueError("it has more memo slots than bytes")


class _Name:
    """A name that a pickle may ask for. It cannot be changed, and what a call does is ours."""

    __slots__ = ("name", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __call__(self, *args: Any) -> Any:
        return self.value(*args) if callable(self.value) else _refuse(f"a call of {self.name}")

    def __setstate__(self, state: Any) -> None:
        _refuse(f"a change to {self.name}")


class _Note:
    """Something to be made at the end: its kind, the arguments and the state it was given."""

    __slots__ = ("args", "kind", "state")
    __hash__ = None  # type: ignore[assignment]
    state: Any

    def __init__(self, kind: str, args: tuple[Any, ...]) -> None:
        self.kind, self.args, self.state = kind, args, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Python's unpickler with our names instead of everybody's."""

    def __init__(self, data: bytes, names: dict[str, _Name]) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")  # the bytes of Python 2 survive this
        self.names = names

    def find_class(self, module: str, name: str, /) -> Any:
        room = module.replace("__builtin__", "builtins").replace("numpy.core.", "numpy._core.")
        return self.names.get(f"{room}:{name}") or _refuse(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        return _Note("contents", pid)  # only met inside a tensor's storage


class _Reader:
    """Reads one file. It makes no more bytes than a few times those of the file."""

    def __init__(self, size: int) -> None:
        self.left = 4 * size
        self.made: dict[int, tuple[Any, Any]] = {}
        values: dict[str, Any] = {
            "_codecs:encode": self._encode,
            "builtins:bytearray": lambda data=b"", code="": bytearray(self._encode(data, code)),
            "builtins:bytes": lambda: b"",
            "builtins:complex": complex,
            "builtins:frozenset": lambda items=(): frozenset(self._paid(items)),
            "builtins:set": lambda items=(): set(self._paid(items)),
            "collections:OrderedDict": lambda pairs=(): dict(self._paid(pairs)),
            "collections:defaultdict": lambda _factory=None: {},
            "collections:deque": lambda items=(), _limit=None: list(self._paid(items)),
            "numpy:dtype": lambda *args: _Note("dtype", args),
            "numpy:ndarray": None,
            "numpy._core.multiarray:_reconstruct": lambda *args: _Note("array", args),
            "numpy._core.multiarray:scalar": self._scalar,
            "numpy._core.numeric:_frombuffer": lambda *args: _Note("buffer", args),
            "torch._utils:_rebuild_tensor_v2": lambda *args: _Note("tensor", args),
            "torch.storage:_load_from_bytes": lambda *args: _Note("storage", args),
            # As what a default dictionary is filled with, never called.
            **{
                f"builtins:{name}": None for name in ("bool", "dict", "float", "int", "list", "str")
            },
            **{f"torch:{name}": dtype for name, dtype in _STORAGES.items()},
        }
        self.names = {name: _Name(name.replace(":", "."), value) for name, value in values.items()}

    def load(self, data: bytes, start: int = 0, nested: bool = False) -> tuple[Any, int]:
        """Reads the pickle that starts there, with notes in it, and says where it ends."""
        end = _scan(data, start, nested)
        return _Unpickler(data[start:end], self.names).load(), end

    def make(self, value: Any) -> Any:
        """Turns the notes in a value into what they describe; containers are filled in place."""
        kind = type(value)
        if kind in _PLAIN or isinstance(value, np.generic):
            return value  # keys and members of sets too: notes have no hash
        if id(value) in self.made:
            return self.made[id(value)][1]
        if kind is list or kind is dict:
            self.made[id(value)] = (value, value)
            for key in range(len(value)) if kind is list else value:
                value[key] = self.make(value[key])
            return value
        if kind is tuple:
            result: Any = tuple(map(self.make, value))
        elif kind is _Note:
            result = self._make_note(value)
        else:
            _refuse(f"{getattr(value, 'name', kind.__name__)} as a value")
        self.made[id(value)] = (value, result)  # with the original, so that its id stays taken
        return result

    def _make_note(self, note: _Note) -> Any:
        if note.kind == "array" and note.args[0] is self.names["numpy:ndarray"]:
            shape, dtype, fortran, raw = note.state[-4:]
            return self._array(raw, dtype, shape, "F" if fortran else "C", note)
        if note.kind in ("buffer", "text") and note.state is None:
            raw, dtype, shape, order, *axes = note.args
            turned = order == "K" and len(axes) == 1 and type(axes[0]) is tuple
            array = self._array(raw, dtype, shape, "C" if turned else order, note)
            if note.kind == "text":
                return array[()]
            return array.transpose(axes[0]) if turned else array
        if note.kind == "tensor" and note.state is None:
            return self._tensor(*note.args)
        _refuse(f"an odd {note.kind}")

    def _array(self, raw: Any, dtype: Any, shape: Any, order: Any, note: _Note) -> np.ndarray:
        dtype = _dtype(dtype)
        count = _count(shape, dtype.itemsize)
        if dtype.kind != "O":
            self._spend(count * dtype.itemsize)
            raw = self._encode(raw, "latin1") if type(raw) is str else raw
            if type(raw) not in (bytes, bytearray) or len(raw) != count * dtype.itemsize:
                raise ValueError("it has an array whose bytes do not fill its shape")
            return np.ndarray(shape, dtype, raw, order=order).copy(order="K")
        if type(raw) is not list or len(raw) != count:
            raise ValueError("it has an array whose objects do not fill its shape")
        self._spend(count)
        flat = np.empty(count, dtype=object)
        array = flat.reshape(shape, order=order)
        self.made[id(note)] = (note, array)  # before it is filled: it may hold itself
        for i, item in enumerate(raw):
            flat[i] = self.make(item)
        return array

    def _scalar(self, dtype: Any, raw: Any) -> Any:
        """A number at once, since it may be a key; text at the end, since it may be long."""
        made = _dtype(dtype)
        raw = self._encode(raw, "latin1") if type(raw) is str else raw
        if made.kind in "SU":
            return _Note("text", (raw, dtype, (), "C"))
        if type(raw) is not bytes or len(raw) != made.itemsize:
            raise ValueError("it has a number of the wrong length")
        return np.frombuffer(raw, made)[0]

    def _tensor(
        self, storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any, *more: Any
    ) -> torch.Tensor:
        if type(storage) is not _Note or storage.kind != "storage" or any(more):
            _refuse("an odd tensor")
        flat, dtype = self._storage(*storage.args)
        count = _count(size, dtype.itemsize)
        _count((offset,), 1)
        _count(stride, 0)
        if len(size) != len(stride):
            raise ValueError("it has a tensor with more sizes than strides, or fewer")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if count and last >= len(flat):
            raise ValueError("it has a tensor that reaches beyond its storage")
        self._spend(count * dtype.itemsize)
        view = np.empty(size, flat.dtype)
        if count:
            steps = [step * dtype.itemsize for step in stride]
            view[...] = np.lib.stride_tricks.as_strided(flat[offset:], size, steps)
        return torch.from_numpy(view).view(dtype)

    def _storage(self, raw: Any) -> tuple[np.ndarray, torch.dtype]:
        """Reads what `torch.save` wrote in its older format: five pickles, then the numbers."""
        if type(raw) is not bytes:
            raise ValueError("it has a tensor without bytes")
        parts, position = [], 0
        for _ in range(5):
            part, position = self.load(raw, position, nested=True)
            parts.append(part)
        magic, contents = parts[0], parts[3]
        if magic != _TORCH_MAGIC or type(contents) is not _Note or contents.kind != "contents":
            _refuse("an odd tensor")
        _, storage, _, _, _, base = contents.args
        if base is not None or not isinstance(getattr(storage, "value", None), torch.dtype):
            _refuse("an odd tensor")
        dtype = storage.value
        count, start = int.from_bytes(raw[position : position + 8], "little"), position + 8
        if len(raw) < start + count * dtype.itemsize:
            raise ValueError("it has a tensor that ends too early")
        return np.frombuffer(raw, _CARRIERS[dtype.itemsize], count, start), dtype

    def _encode(self, text: Any, code: Any) -> bytes:
        """Gives the bytes that older protocols wrote as text."""
        if type(text) is bytes and not code:
            return bytes(self._paid(text))
        if type(text) is not str or code not in ("latin1", "latin-1"):
            _refuse("an odd encoding")
        return str(self._paid(text)).encode("latin1")

    def _paid(self, items: Any) -> Any:
        if not isinstance(items, Sized):
            raise TypeError("it makes a container of something else")
        self._spend(len(items))
        return items

    def _spend(self, size: int) -> None:
        # A few bytes of a pickle can ask for the same megabytes a thousand times.
        self.left -= size
        if self.left < 0:
            raise ValueError("it makes far more than is in it")


def _dtype(note: Any) -> np.dtype[Any]:
    """Numbers, text or objects. Fields are refused: numpy would take our bytes for pointers."""
    if type(note) is not _Note or note.kind != "dtype" or type(note.state) is not tuple:
        raise ValueError("it has an array without a dtype")
    if len(note.state) > 8 or note.state[2:5] != (None, None, None):
        raise ValueError("it has structured arrays or dates, which are not read")
    code, order = note.args[0], note.state[1]
    if type(code) is not str or type(order) is not str:
        raise ValueError("it has an array without a dtype")
    return _named_dtype(code, order)


@lru_cache(maxsize=256)
def _named_dtype(code: str, order: str) -> np.dtype[Any]:
    if not re.fullmatch(r"[biufc]\d{1,2}|O8?|[SU]\d{1,8}", code) or order not in "<>|=":
        raise ValueError("it has arrays of something else than numbers, text and objects")
    return np.dtype("O" if code[0] == "O" else code).newbyteorder(order)  # type: ignore[arg-type]


def _count(shape: Any, itemsize: int) -> int:
    """How many elements a shape has, if it is one."""
    if type(shape) is not tuple or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("it has an array or tensor without a proper shape")
    count = math.prod(shape)
    if not count and math.prod(max(n, 1) for n in shape) * itemsize > _EMPTY_LIMIT:
        raise ValueError("it has an empty array of an absurd shape")
    return count
