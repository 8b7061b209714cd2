"""Codes of keys and values: how far they are from what they stand for, and where they lie."""

import math

import pytest
import torch

from protocol.errors import ConfigError
from protocol.refs import KVGroup, KVLayout
from services.engine.attention.kv_cache import KVCache, block_bytes, block_elements, pool_dtype
from services.engine.attention.kv_codes import FP8, INT8, NUMBERS, decoded, encoded

KINDS = pytest.mark.parametrize("codes", [INT8, FP8])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def rows(dtype: torch.dtype) -> torch.Tensor:
    """[N, 64]: of many sizes, with a few elements that stand out, and zeros."""
    torch.manual_seed(0)
    largest = 2 if dtype is torch.float16 else 25
    sizes = torch.logspace(-largest, largest, 200)[:, None]
    drawn = torch.randn(200, 64) * sizes
    drawn[::3, 7] *= 30
    drawn[5] = 0
    drawn[6] = -sizes[6]
    return drawn.to(dtype)


def read(values: torch.Tensor, codes: str) -> torch.Tensor:
    kind = NUMBERS[codes]
    return decoded(*encoded(values, kind), kind, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_is_off_by_half_a_step_at_most(dtype: torch.dtype) -> None:
    values = rows(dtype)
    codes, scales = encoded(values, NUMBERS[INT8])
    assert codes.dtype is torch.uint8 and codes.shape == values.shape
    assert scales.dtype is torch.bfloat16 and scales.shape == values.shape[:1]
    off = (read(values, INT8) - values.float()).abs().amax(-1)
    steps = values.float().abs().amax(-1) / 127
    assert (scales.float() - steps).abs().le(steps / 256).all(), "a step is a 127th of the largest"
    assert off.le(scales.float() * 0.5001).all()
    assert off.gt(steps * 0.25).sum() > 150, "the bound is not to be met by chance"


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_is_off_by_a_sixteenth_of_each_element_at_most(dtype: torch.dtype) -> None:
    values = rows(dtype)
    _, scales = encoded(values, NUMBERS[FP8])
    off = (read(values, FP8) - values.float()).abs()
    least = scales.float()[:, None] * 2.0**-10  # half a step of the smallest codes
    assert off.le(torch.maximum(values.float().abs() / 16, least) * 1.0001).all()


@KINDS
def test_a_row_of_zeros_or_nearly_so_is_zeros(codes: str) -> None:
    for value in (0.0, 1e-35, 1e-45):
        assert torch.equal(read(torch.full((1, 8), value), codes), torch.zeros(1, 8))


@KINDS
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_stays_none(codes: str, value: float) -> None:
    values = torch.ones(2, 8)
    values[0, 3] = value
    found = read(values, codes)
    assert not found[0].isfinite().any() and found[1].isfinite().all()


@KINDS
def test_codes_of_a_row_do_not_depend_on_others(codes: str) -> None:
    values = rows(torch.float32)
    whole = read(values, codes)
    alone = torch.cat([read(values[row : row + 1], codes) for row in range(len(values))])
    assert torch.equal(whole, alone)


@KINDS
def test_codes_of_what_codes_say_are_the_same(codes: str) -> None:
    """As when KV that was read is written again."""
    once = read(rows(torch.float32), codes)
    assert torch.equal(read(once, codes), once)


def layout(dtype: str, dim: int = 128, block_size: int = 16) -> KVLayout:
    wide = KVGroup((0, 2, 3), 4, dim, dim // 2, 0)
    return KVLayout((wide, KVGroup((1,), 1, 8, 24, 64)), block_size, dtype)


@KINDS
def test_a_block_takes_half_the_bytes(codes: str) -> None:
    assert pool_dtype(layout(codes)) is torch.uint8
    for dim, share in ((128, 0.515), (64, 0.53)):
        assert 0.5 < block_bytes(layout(codes, dim)) / block_bytes(layout("bfloat16", dim)) < share
    assert block_bytes(layout("float32")) == 2 * block_bytes(layout("bfloat16"))


@KINDS
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_layers_lie_beside_one_another(codes: str, block_size: int) -> None:
    """Each layer is read as it was written, also after others were written."""
    shape = layout(codes, 32, block_size)
    cache = KVCache(shape, torch.zeros(4, block_elements(shape), dtype=torch.uint8))
    torch.manual_seed(0)
    tokens = 2 * block_size
    blocks, offsets = torch.arange(tokens) // block_size + 1, torch.arange(tokens) % block_size
    written = {}
    for group in shape.groups:
        for layer in group.layers:
            key = torch.randn(tokens, group.kv_heads, group.k_dim)
            value = torch.randn(tokens, group.kv_heads, group.v_dim)
            cache.write(layer, blocks, offsets, key, value)
            written[layer] = read(key, codes), read(value, codes)
    for layer, expected in written.items():
        found = cache.read(layer, torch.tensor([1, 2]), torch.float32)
        for rows_found, rows_expected in zip(found, expected, strict=True):
            assert torch.equal(rows_found.flatten(0, 1), rows_expected)
    assert not cache.pool[[0, 3]].any(), "other blocks are left alone"


def test_a_pool_of_another_size_is_refused() -> None:
    shape = layout(INT8)
    with pytest.raises(ConfigError, match="elements per block, the layout needs"):
        KVCache(shape, torch.zeros(4, shape.block_bytes(1), dtype=torch.uint8))
