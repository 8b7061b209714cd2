"""The arrays of a step in one buffer, and out of it again."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.engine.model.step_upload import pack, packed_bytes, upload, views

DTYPES = (np.int64, np.int32, np.bool_)
SHAPES = st.lists(st.integers(0, 7), min_size=1, max_size=2)


@given(st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=8), st.integers(0, 9))
def test_arrays_come_out_of_the_buffer_as_they_went_in(
    sizes: list[tuple[list[int], type[Any]]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    arrays: dict[str, NDArray[Any]] = {
        f"{i}": random.integers(0, 2 if dtype is np.bool_ else 1 << 30, shape).astype(dtype)
        for i, (shape, dtype) in enumerate(sizes)
    }
    host = torch.full((packed_bytes(arrays),), 0xA5, dtype=torch.uint8)
    pack(arrays, host)
    found = views(arrays, host.clone())
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].numpy().dtype == array.dtype
        assert np.array_equal(found[name].numpy(), array)


def test_every_array_begins_where_wide_loads_can() -> None:
    arrays = {"a": np.ones(3, np.int32), "b": np.ones(1, np.bool_), "c": np.ones((2, 5), np.int64)}
    host = torch.zeros(packed_bytes(arrays), dtype=torch.uint8)
    pack(arrays, host)
    offsets = [t.storage_offset() * t.itemsize for t in views(arrays, host).values()]
    assert offsets == [0, 16, 32]


def test_an_array_that_is_a_view_is_packed_by_its_values() -> None:
    table = np.arange(24).reshape(4, 6)
    arrays = {"columns": table[:, 1::2], "turned": table.T}
    host = torch.zeros(packed_bytes(arrays), dtype=torch.uint8)
    pack(arrays, host)
    found = views(arrays, host)
    assert found["columns"].tolist() == table[:, 1::2].tolist()
    assert found["turned"].tolist() == table.T.tolist()


def test_a_cpu_copies_nothing() -> None:
    array = np.arange(4)
    tensor = upload({"a": array}, torch.device("cpu"))["a"]
    array[2] = 9
    assert tensor.tolist() == [0, 1, 9, 3]


def test_a_gpu_gets_one_copy_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fake for what needs a GPU: pinning, and the copy itself."""
    asked: list[tuple[Any, ...]] = []
    empty, to = torch.empty, torch.Tensor.to

    def fake_empty(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        asked.append(("pinned", pin_memory))
        return empty(*args, **options)

    def fake_to(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        asked.append(("to", *args, options))
        return to(tensor, "cpu", copy=True)

    monkeypatch.setattr(torch, "empty", fake_empty)
    monkeypatch.setattr(torch.Tensor, "to", fake_to)
    arrays: dict[str, NDArray[Any]] = {"a": np.arange(5), "b": np.arange(3, dtype=np.int32)}
    found = upload(arrays, torch.device("cuda:1"))
    assert asked == [("pinned", True), ("to", torch.device("cuda:1"), {"non_blocking": True})]
    assert found["a"].tolist() == [0, 1, 2, 3, 4]
    assert found["b"].tolist() == [0, 1, 2]
