"""Reading pickles of other systems without running what is in them.

A pickle is a program. Three steps keep it from doing anything but describing data:

1. The opcodes are scanned: none may reach outside the file, no size may exceed it.
2. Python's unpickler runs them, but every name it can find leads to a stand-in of ours, which
   notes down what to make and has no attribute that a pickle could change.
3. The stand-ins become arrays and tensors, after their sizes are held against each other and
   against the size of the file.
"""

import io
import math
import os
import pathlib
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch

_READ = "only arrays, tensors, numbers, text and plain containers are read from a pickle"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, set, frozenset)

_SIZES = {ord(op.code): op.arg.n if op.arg else 0 for op in pickletools.opcodes}
_OPCODES = {op.name: ord(op.code) for op in pickletools.opcodes}
_REFUSED = {
    _OPCODES[name]: name
    for name in ("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER")
}
_TWO_LINES = (_OPCODES["GLOBAL"], _OPCODES["INST"])
_WIDTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}

_STORAGES = {
    **{"FloatStorage": torch.float32, "DoubleStorage": torch.float64},
    **{"HalfStorage": torch.float16, "BFloat16Storage": torch.bfloat16},
    **{"LongStorage": torch.int64, "IntStorage": torch.int32, "ShortStorage": torch.int16},
    **{"CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool},
    **{"ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128},
}
_CARRIERS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64, 16: np.complex128}
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C


class UnsafePickleError(ValueError):
    """A pickle asks for more than data."""


def safe_unpickle(source: str | os.PathLike[str] | bytes) -> Any:
    """Reads a pickle of plain containers, numbers, text, numpy arrays and CPU tensors.

    Ordered and default dictionaries come back as dictionaries, deques as lists, tensors without
    their gradient flag. A pickle that asks for anything else is refused before it gets it.

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
    """Finds the end of a pickle; it must not reach outside itself nor claim more than it has."""
    position, end = start, len(data)
    while position < end:
        opcode = data[position]
        size = _SIZES[opcode]
        position += 1
        if opcode in _REFUSED and not (nested and opcode == _OPCODES["BINPERSID"]):
            _refuse(f"what is outside the file (opcode {_REFUSED[opcode]})")
        if opcode == _OPCODES["STOP"]:
            return position
        argument = position
        if size >= 0:
            position += size
        elif size == pickletools.UP_TO_NEWLINE:
            for _ in range(2 if opcode in _TWO_LINES else 1):
                position = data.index(b"\n", position) + 1
        else:
            width = _WIDTHS[size]
            position += width + int.from_bytes(data[position : position + width], "little")
        # The unpickler allocates as many memo slots as the highest number it is given.
        if opcode == _OPCODES["LONG_BINPUT"]:
            _check_slot(int.from_bytes(data[argument:position], "little"), end)
        elif opcode == _OPCODES["PUT"]:
            _check_slot(int(data[argument:position]), end)
    raise ValueError("it ends too early")


def _check_slot(slot: int, size: int) -> None:
    if slot > size:
        raise ValueError(f"it uses memo slot {slot}, more than it has bytes")


class _StandIn:
    """What a pickle gets hold of: no key of a dictionary, and nothing of it can be set."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __setstate__(self, state: Any) -> None:
        _refuse(f"a change to {type(self).__name__}")


class _Name(_StandIn):
    """A name that may be asked for; what happens on a call is ours."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __call__(self, *args: Any) -> Any:
        if not callable(self.value):
            _refuse(f"a call of {self.name}")
        return self.value(*args)


class _Dtype(_StandIn):
    """``numpy.dtype``: numbers, text and objects, nothing nested."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *_: Any) -> None:
        if type(code) is not str or not re.fullmatch(r"[biufc]\d{1,2}|O8?|[SU]\d{1,8}", code):
            raise ValueError(f"it has arrays of dtype {code!r}, which are not read")
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        # Fields are refused: numpy trusts their flags and would take bytes for pointers.
        if len(state) > 8 or any(part is not None for part in state[2:5]):
            raise ValueError("it has structured arrays, which are not read")
        self.order = str(state[1])

    def make(self) -> np.dtype[Any]:
        return np.dtype(self.code.rstrip("8") if self.code[0] == "O" else self.code).newbyteorder(
            self.order  # type: ignore[arg-type]
        )


class _Array(_StandIn):
    """An array, or a numpy scalar of text, that is made at the end."""

    __slots__ = ("dtype", "order", "raw", "scalar", "shape")

    def __init__(self, raw: Any, dtype: Any, shape: Any, order: Any, scalar: bool = False) -> None:
        self.raw, self.dtype, self.shape, self.order = raw, dtype, shape, order
        self.scalar = scalar

    def __setstate__(self, state: Any) -> None:
        shape, dtype, fortran, raw = state[-4:]
        self.raw, self.dtype, self.shape = raw, dtype, shape
        self.order = "F" if fortran else "C"


class _Payload(_StandIn):
    """The bytes that ``torch.storage._load_from_bytes`` would run."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw


class _Storage(_StandIn):
    """What such bytes describe: numbers of one dtype."""

    __slots__ = ("dtype", "key")

    def __init__(self, dtype: torch.dtype, key: Any) -> None:
        self.dtype, self.key = dtype, key


class _Tensor(_StandIn):
    """A view on a storage that is made at the end."""

    __slots__ = ("offset", "payload", "size", "stride")

    def __init__(
        self, payload: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any
    ) -> None:
        self.payload, self.offset, self.size, self.stride = payload, offset, size, stride


class _Unpickler(pickle.Unpickler):
    """Python's unpickler with our names instead of everybody's."""

    def __init__(self, data: bytes, names: dict[str, _Name], nested: bool) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")  # as Python 2 wrote its arrays
        self.names, self.nested = names, nested

    def find_class(self, module: str, name: str, /) -> Any:
        known = module.replace("__builtin__", "builtins").replace("numpy.core.", "numpy._core.")
        return self.names.get(f"{known}:{name}") or _refuse(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        if not self.nested or type(pid) is not tuple or len(pid) != 6:
            _refuse("an object outside the file")
        kind, storage, key, _location, _count, view = pid
        if kind != "storage" or type(storage) is not _Name or view is not None:
            _refuse("an object outside the file")
        if not isinstance(storage.value, torch.dtype):
            _refuse(f"a storage of type {storage.name}")
        return _Storage(storage.value, key)


class _Reader:
    """Reads one file, within a budget: the bytes it makes are a few times those of the file."""

    def __init__(self, size: int) -> None:
        self.left = 4 * size
        self.made: dict[int, tuple[Any, Any]] = {}
        ndarray = _Name("numpy.ndarray", None)
        values: dict[str, Any] = {
            "_codecs:encode": self._encode,
            "builtins:bytearray": self._bytearray,
            "builtins:bytes": lambda: b"",
            "builtins:complex": complex,
            "builtins:frozenset": lambda items=(): frozenset(self._spend_on(items)),
            "builtins:set": lambda items=(): set(self._spend_on(items)),
            "collections:OrderedDict": dict,
            "collections:defaultdict": lambda *_: {},
            "collections:deque": lambda *_: [],
            "numpy:dtype": _Dtype,
            "numpy._core.multiarray:_reconstruct": lambda kind, *_: (
                _Array(None, None, None, None) if kind is ndarray else _refuse("an odd array")
            ),
            "numpy._core.multiarray:scalar": _scalar,
            "numpy._core.numeric:_frombuffer": _Array,
            "torch._utils:_rebuild_tensor_v2": _Tensor,
            "torch.storage:_load_from_bytes": _Payload,
            **{f"builtins:{name}": None for name in ("bool", "dict", "float", "int", "list")},
            **{f"builtins:{name}": None for name in ("str", "tuple")},
            **{f"torch:{name}": dtype for name, dtype in _STORAGES.items()},
        }
        self.names = {name: _Name(name.replace(":", "."), value) for name, value in values.items()}
        self.names["numpy:ndarray"] = ndarray
