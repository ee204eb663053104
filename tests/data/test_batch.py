"""`Batch`: construction, keys, rows, printing, conversion, copies."""

import collections
import copy
import enum
import pickle
import types

import numpy as np
import pytest
import torch

from guerdon.data import Batch
from tests.compat.snippets import run_session


def test_the_policy_section_of_the_document_as_printed():
    batch = Batch(obs=[{"image": np.zeros((4, 4)), "speed": 2.5}])
    assert batch.shape == (1,)
    assert batch.obs.image.shape == (1, 4, 4)
    assert batch.obs.speed.shape == (1,)


def test_the_docstring_of_the_class():
    header = ">>> import numpy as np, torch\n>>> from guerdon.data import Batch\n\n"
    run_session(header + Batch.__doc__)


# --- construction


def test_keywords_dicts_batches_and_lists_of_them_agree():
    made = [
        Batch(a=[1, 2], b={"c": [3.0, 4.0]}),
        Batch({"a": np.array([1, 2]), "b": {"c": np.array([3.0, 4.0])}}),
        Batch(types.MappingProxyType({"a": (1, 2)}), b=collections.OrderedDict(c=[3.0, 4.0])),
        Batch([{"a": 1, "b": {"c": 3.0}}, {"a": 2, "b": {"c": 4.0}}]),
        Batch(({"a": 1, "b": Batch(c=3.0)}, Batch(a=2, b={"c": 4.0}))),
        Batch(np.array([{"a": 1, "b": {"c": 3.0}}, {"a": 2, "b": {"c": 4.0}}], dtype=object)),
        Batch(Batch(a=[1, 2], b=Batch(c=[3.0, 4.0]))),
    ]
    for batch in made:
        assert batch == made[0]
        assert batch.a.dtype == np.int64
        assert batch.b.c.dtype == np.float64


def test_numbers_and_strings_stay_what_they_are():
    batch = Batch(i=4, f=0.5, b=True, s="x", y=b"y", z=2j, n=None)
    kinds = [type(value) for value in batch.values()]
    assert kinds == [int, float, bool, str, bytes, complex, type(None)]


def test_arrays_and_tensors_are_kept_by_reference_with_their_dtype():
    for dtype in (
        np.uint8,
        np.float16,
        np.float32,
        np.int32,
        np.bool_,
        np.complex64,
        "M8[s]",
        ">f4",
    ):
        array = np.zeros(3, dtype)
        assert Batch(a=array).a is array
        assert Batch({"a": array}).a is array
    tensor = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
    assert Batch(a=tensor).a is tensor
    assert Batch(a=torch.nn.Parameter(torch.zeros(2))).a.requires_grad


def test_lists_of_tensors_are_stacked_at_any_depth():
    row = [torch.zeros(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)]
    assert Batch(a=row).a.shape == (2, 2)
    nested = Batch(a=[row, row, row]).a
    assert nested.shape == (3, 2, 2)
    assert nested.dtype == torch.int32


def test_lists_of_dicts_are_stacked_at_any_depth():
    batch = Batch(agents=[[{"x": 1}, {"x": 2}], [{"x": 3}, Batch(x=4)]])
    assert batch.agents.x.tolist() == [[1, 2], [3, 4]]
    batch = Batch({"outer": {"list": [Batch(x=[1, 2]), Batch(x=[3, 4])]}})
    assert batch.outer.list.x.shape == (2, 2)


def test_named_tuples_are_tuples_and_generators_are_objects():
    point = collections.namedtuple("Point", "x y")(1, 2)
    assert Batch(a=point).a.tolist() == [1, 2]
    generator = (i for i in range(3))
    assert Batch(a=generator).a is generator
    with pytest.raises(
        TypeError, match="made from a mapping or a list of them, not from generator"
    ):
        Batch(i for i in range(3))


def test_only_python_objects_become_object_arrays():
    assert Batch(a=["x", "y"]).a.dtype == object
    assert Batch(a=np.array(["x", "yy"])).a.dtype == object
    assert Batch(a=[None, "x"]).a.tolist() == [None, "x"]
    assert Batch(a=[{1}, {2, 3}]).a.dtype == object
    assert Batch(a=[]).a.dtype == np.float64
    assert Batch(a=[1, 2.5]).a.dtype == np.float64
    assert Batch(a=[True, False]).a.dtype == np.bool_


def test_strings_keep_the_nul_characters_that_numpy_would_cut_off():
    assert Batch(a=["x\0", "y"]).a.tolist() == ["x\0", "y"]
    assert Batch.stack([Batch(a=b"\1\0"), Batch(a=b"\0")]).a.tolist() == [b"\1\0", b"\0"]


def test_subclasses_of_arrays_share_memory_but_act_as_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(4, 2))
    batch = Batch(a=mapped)
    assert type(batch.a) is np.ndarray
    batch[1] = 3
    assert mapped[1].tolist() == [3, 3]
    assert Batch.cat([batch[:2], Batch(a=mapped[2:])]) == batch
    read_only = Batch(a=np.memmap(tmp_path / "rows", np.float32, "r", shape=(4, 2)))
    assert read_only.to_torch().a.shape == (4, 2)
    with pytest.raises(TypeError, match="key 'a' is a masked array"):
        Batch(a=np.ma.array([1, 2], mask=[True, False]))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0)[::-1],
        np.arange(6, dtype=">i4"),
        np.arange(6, dtype=np.float64).reshape(2, 3).T,
        np.frombuffer(np.arange(6, dtype=np.float32).tobytes(), np.float32),
        np.zeros(6, [("a", "u1"), ("b", "<f4")])["b"],
    ],
)
def test_any_numeric_array_goes_to_a_device(array):
    moved = Batch(a=array).to_device(torch.device("cpu")).a
    assert moved.tolist() == array.tolist()
    assert moved.dtype in (torch.float32, torch.int32)


@pytest.mark.parametrize(
    ("values", "sides"),
    [
        ([[1, 2], [3]], r"list \[1, 2\] and list \[3\]"),
        ([[1, 2], 3], r"list \[1, 2\] and int 3"),
        ([np.zeros(2), np.zeros(3)], r"array of shape \(2,\) and float64 array of shape \(3,\)"),
        ([[[1, 2], [3]], [[1, 2], [3]]], "unequal shapes"),
    ],
)
def test_ragged_lists_are_refused_with_both_sides(values, sides):
    with pytest.raises(ValueError, match=f"key 'obs.a' .*{sides}"):
        Batch(obs={"a": values})


@pytest.mark.parametrize(
    ("values", "sides"),
    [
        ([{"x": 1}, 3], r"dict of keys \(x\) and int 3"),
        ([3, Batch(x=[1, 2])], r"int 3 and Batch of keys \(x\)"),
        (
            [np.zeros(2), torch.zeros(2)],
            r"float64 array of shape \(2,\) and float32 tensor of shape",
        ),
        ([torch.zeros(2), 3], r"float32 tensor of shape \(2,\) and int 3"),
        ([torch.zeros(2), torch.zeros(2).int()], r"float32 tensor .* and int32 tensor"),
    ],
)
def test_mixed_lists_are_refused_with_both_sides(values, sides):
    with pytest.raises(TypeError, match=f"key 'a' .*{sides}"):
        Batch(a=values)


def test_lists_of_unequal_dicts_are_refused_with_the_whole_key():
    with pytest.raises(
        ValueError, match=r"'obs\.a\.x' is in the first but not in the second \(x and y\)"
    ):
        Batch(obs={"a": [{"x": 1}, {"y": 1}]})
    with pytest.raises(TypeError, match=r"key 'a\.x' does not fit: int 1 and str 'one'"):
        Batch(a=[{"x": 1}, {"x": "one"}])


@pytest.mark.parametrize("data", [3, "x", [1, 2], np.zeros(3), {1, 2}])
def test_a_batch_is_made_of_mappings(data):
    with pytest.raises(TypeError, match="made from a mapping"):
        Batch(data)


def test_keys_are_strings():
    with pytest.raises(TypeError, match="strings, not 1"):
        Batch({1: 2})
    with pytest.raises(TypeError, match="strings, not 1"):
        Batch(a={1: np.zeros(2)})


def test_nothing_makes_an_empty_batch():
    for batch in (Batch(), Batch({}), Batch(None), Batch([]), Batch(())):
        assert batch.is_empty()
        assert len(batch) == 0
        assert batch.shape == ()
        assert not batch
        assert repr(batch) == "Batch()"


# --- keys


def test_keys_are_read_and_written_both_ways():
    batch = Batch(a=1)
    batch.b = [1, 2]
    batch["c"] = {"d": 3}
    assert batch["b"] is batch.b
    assert batch.c.d == batch["c"]["d"] == 3
    assert list(batch.keys()) == ["a", "b", "c"]
    assert [type(value) for value in batch.values()] == [int, np.ndarray, Batch]
    assert dict(batch.items()).keys() == dict(batch).keys() == {**batch}.keys()
    assert "a" in batch
    assert "d" not in batch
    del batch.a
    assert "a" not in batch


def test_get_pop_update():
    batch = Batch(a=1, b=2)
    assert batch.get("a") == 1
    assert batch.get("x") is None
    assert batch.get("x", 5) == 5
    assert batch.pop("a") == 1
    assert batch.pop("a", 7) == 7
    batch.update({"b": [1]}, c={"d": 1})
    batch.update(Batch(e=5))
    batch.update(f=6)
    assert list(batch.keys()) == ["b", "c", "e", "f"]
    assert isinstance(batch.b, np.ndarray)
    assert isinstance(batch.c, Batch)


def test_a_missing_key_is_named_with_those_there_are():
    batch = Batch(b=1, a=2)
    for error, call in (
        (AttributeError, lambda: batch.zzz),
        (AttributeError, lambda: delattr(batch, "zzz")),
        (KeyError, lambda: batch["zzz"]),
        (KeyError, lambda: batch.pop("zzz")),
    ):
        with pytest.raises(error, match="no key 'zzz'; it has: a, b"):
            call()
    with pytest.raises(AttributeError, match="it has: none"):
        _ = Batch().zzz
    assert not hasattr(batch, "zzz")


METHODS = sorted(name for name in vars(Batch) if not name.startswith("__"))
ODD_KEYS = [
    *METHODS,
    "self",
    "data",
    "fields",
    "__class__",
    "__deepcopy__",
    "__len__",
    "ключ",
    "a b",
    "",
]


@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_key_may_have_any_name(key):
    batch = Batch(**{key: [1, 2], "other": [3, 4]})
    assert batch[key].tolist() == [1, 2]
    assert batch[0] == Batch({key: 1, "other": 3})
    assert len(batch) == 2
    assert batch.shape == (2,)
    assert dict(batch.items()).keys() == {key, "other"}
    assert (batch + 1)[key].tolist() == [2, 3]
    assert Batch.cat(list(batch.split(1, shuffle=False))) == batch
    assert Batch.stack(list(batch)) == batch
    assert batch.to_torch().to_numpy() == batch
    assert copy.deepcopy(batch) == pickle.loads(pickle.dumps(batch)) == copy.copy(batch) == batch
    assert f"{key}: array([1, 2])," in repr(batch)
    setattr(batch, key, [5, 6])
    assert batch[key].tolist() == [5, 6]
    assert batch.pop(key).tolist() == [5, 6]


def test_a_key_named_like_a_method_leaves_the_method_alone():
    batch = Batch(items=[1, 2], shape=[3, 4])
    assert callable(batch.items)
    assert batch.shape == (2,)
    with pytest.raises(AttributeError, match=r"read it as batch\['__magic__'\]"):
        _ = Batch(__magic__=1).__magic__
    assert getattr(Batch(__hidden=1), "__hidden") == 1


def test_members_of_string_enumerations_are_keys():
    names = enum.Enum("names", {"OBS": "obs"}, type=str)
    batch = Batch(obs=[1, 2])
    assert batch[names.OBS] is batch.obs
    assert batch[np.str_("obs")] is batch.obs


# --- printing


PRINTED = """Batch(
    sub: Batch(
             x: Batch(
                    deep: 'text',
                ),
             y: Batch(),
         ),
    a: array([[1., 0.],
              [0., 1.]], dtype=float32),
    b: 0.5,
    n: None,
    z: tensor([[0., 0.],
               [0., 0.]]),
)"""


def test_printing_sorts_the_keys_and_indents_what_is_nested():
    batch = Batch(
        z=torch.zeros(2, 2),
        b=np.float32(0.5),
        a=np.eye(2, dtype=np.float32),
        n=None,
        sub={"y": {}, "x": {"deep": "text"}},
    )
    assert repr(batch) == str(batch) == PRINTED


# --- Batch.replace


def test_replace_gives_a_new_batch_and_leaves_the_old_one():
    batch = Batch(rew=np.array([1.0, 2.0]), obs=np.zeros((2, 3)), policy={"value": np.ones(2)})
    new = batch.replace(rew=batch.rew * 10, extra=[5, 6])
    assert new.rew.tolist() == [10.0, 20.0]
    assert new.extra.tolist() == [5, 6]
    assert batch.rew.tolist() == [1.0, 2.0]
    assert "extra" not in batch
    assert set(new.keys()) == {"rew", "obs", "policy", "extra"}


def test_what_is_not_replaced_is_shared():
    batch = Batch(rew=np.zeros(2), obs=np.zeros((2, 3)), policy={"value": np.ones(2)})
    new = batch.replace(rew=np.ones(2))
    assert new.obs is batch.obs
    assert new.policy.value is batch.policy.value
    rew = np.ones(2)
    assert batch.replace(rew=rew).rew is rew


def test_replace_takes_nested_values_and_tensors():
    batch = Batch(rew=np.zeros(2), terms=Batch(env=np.zeros(2)))
    new = batch.replace(terms={"gail": torch.ones(2)}, rew=torch.ones(2))
    assert list(new.terms.keys()) == ["gail"]  # a field is replaced as a whole
    assert isinstance(new.terms, Batch)
    assert isinstance(new.rew, torch.Tensor)
    assert list(batch.terms.keys()) == ["env"]


def test_replace_without_fields_is_a_shallow_copy():
    batch = Batch(a=np.arange(3))
    new = batch.replace()
    new.b = 1
    assert "b" not in batch
    assert new.a is batch.a
