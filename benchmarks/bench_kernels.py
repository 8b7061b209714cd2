"""Our paged attention kernels beside PyTorch's attention on keys that already lie contiguous.

    python -m benchmarks.bench_kernels [--quick] [--json FILE]

Shapes are those of Qwen2.5-VL-7B: 28 heads over 4 kv heads of dimension 128, bfloat16, blocks of 16
tokens scattered over the pool. The peer has no block tables to follow, so a ratio of 1 means that
paging costs nothing. A row holds if `ratio` (our time / peer's time) is at most `bar`.

Calls are timed inside a CUDA graph that walks through many layers, as a step of a model does: no
launch cost, and keys come from memory, not from the L2 cache.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from benchmarks.common.rows import Row, arguments, at_most, finish, hardware, head, line
from protocol.refs import KVGroup, KVLayout
from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache, block_elements
from services.engine.attention.paged import backend_for

HEADS, KV_HEADS, DIM, BLOCK_SIZE = 28, 4, 128, 16
DTYPE = torch.bfloat16
SCALE = DIM**-0.5
PREFILL_BAR, DECODE_BAR = 1.5, 1.1
TOLERANCE = 2e-2
COLD_BYTES = 512 << 20  # of KV over all layers: several times the L2 cache
MAX_LAYERS = 128
REPLAYS = 25
MIN_CALLS = 16


@dataclass(frozen=True)
class Shape:
    """`requests` of `context` tokens each, the last `count` of them new."""

    requests: int
    context: int
    count: int

    @property
    def name(self) -> str:
        if self.count == 1:
            return f"decode {self.requests} x {self.context}"
        return f"prefill {self.requests} x {self.count} of {self.context}"

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one layer."""
        return self.requests * self.context * KV_HEADS * 2 * DIM * DTYPE.itemsize

    @property
    def flops(self) -> int:
        """Of one layer: two products over all visible pairs."""
        pairs = self.count * self.context - self.count * (self.count - 1) // 2
        return 4 * DIM * HEADS * self.requests * pairs

    @property
    def layers(self) -> int:
        return max(1, min(MAX_LAYERS, -(-COLD_BYTES // self.kv_bytes)))


DECODE = tuple(Shape(r, c, 1) for r in (1, 8, 64) for c in (512, 2048, 8192, 32768))
PREFILL = (
    Shape(1, 512, 512),
    Shape(16, 512, 512),
    Shape(1, 2048, 2048),
    Shape(1, 8192, 8192),
    Shape(1, 32768, 32768),
    Shape(1, 8192, 2048),
    Shape(1, 32768, 2048),
)
QUICK = (Shape(1, 2048, 1), Shape(16, 4096, 1), Shape(1, 2048, 2048), Shape(1, 8192, 2048))


@dataclass(frozen=True)
class Setup:
    """A shape's tensors. query [heads, T, dim]; keys and values, contiguous, for each layer
    [requests, kv_heads, context, dim]."""

    shape: Shape
    batch: PagedBatch
    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def ours(self, layer: int) -> torch.Tensor:
        """[T, heads, dim]"""
        backend = backend_for(self.query.device)
        return backend.attend(self.query, layer, self.batch, SCALE, None, None)

    def peer(self, layer: int) -> torch.Tensor:
        """[requests, heads, count, dim]"""
        shape = self.shape
        query = self.query.view(HEADS, shape.requests, shape.count, DIM).transpose(0, 1)
        key, value = self.keys[layer], self.values[layer]
        if shape.count == 1:
            return F.scaled_dot_product_attention(query, key, value, scale=SCALE, enable_gqa=True)
        mask = causal_lower_right(shape.count, shape.context)
        return F.scaled_dot_product_attention(query, key, value, mask, scale=SCALE, enable_gqa=True)

    def grouped_peer(self, layer: int) -> torch.Tensor:
        """Decode with the heads of a group as queries of one head: the peer without repeated keys.
        [requests, heads, 1, dim]"""
        query = self.query.transpose(0, 1).view(-1, KV_HEADS, HEADS // KV_HEADS, DIM)
        key, value = self.keys[layer], self.values[layer]
        out = F.scaled_dot_product_attention(query, key, value, scale=SCALE)
        return out.flatten(1, 2).unsqueeze(2)


def build(shape: Shape, device: torch.device) -> Setup:
    """Random keys and values in scattered blocks, and their contiguous copies."""
    layout = KVLayout((KVGroup(tuple(range(shape.layers)), KV_HEADS, DIM, DIM),), BLOCK_SIZE, "")
    width = -(-shape.context // BLOCK_SIZE)
    tables = torch.randperm(shape.requests * width, device=device).view(shape.requests, width)
    pool = torch.empty(tables.numel(), block_elements(layout), dtype=DTYPE, device=device)
    cache = KVCache(layout, pool.normal_())
    positions = torch.arange(shape.context - shape.count, shape.context, device=device)
    batch = PagedBatch(
        cache=cache,
        slot_blocks=tables[:, positions // BLOCK_SIZE].flatten(),
        slot_offsets=(positions % BLOCK_SIZE).repeat(shape.requests),
        block_tables=tables,
        query_starts=[r * shape.count for r in range(shape.requests + 1)],
        context_lens=[shape.context] * shape.requests,
        positions=positions.repeat(shape.requests),
    )
    tokens = shape.requests * shape.count
    query = torch.randn(tokens, HEADS, DIM, device=device).to(DTYPE).transpose(0, 1)
    keys, values = (
        [
            cached(layer)[tables].flatten(1, 2)[:, : shape.context].transpose(1, 2).contiguous()
            for layer in range(shape.layers)
        ]
        for cached in (cache.key, cache.value)
    )
    return Setup(shape, batch, query, keys, values)


def check(setup: Setup) -> None:
    """`AssertionError` unless ours and the peers compute the same."""
    shape = setup.shape
    ours = setup.ours(0).view(shape.requests, shape.count, HEADS, DIM).transpose(1, 2)
    peers = [setup.peer, setup.grouped_peer] if shape.count == 1 else [setup.peer]
    for peer in peers:
        torch.testing.assert_close(ours, peer(0), atol=TOLERANCE, rtol=TOLERANCE)


def median_us(call: Callable[[int], torch.Tensor], layers: int) -> float:
    """Median over replays of the time of one call, in µs."""
    for _ in range(3):
        call(0)
    torch.cuda.synchronize()
    rounds = -(-MIN_CALLS // layers)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in list(range(layers)) * rounds:
            call(layer)
    graph.replay()
    times = [_elapsed_us(graph) / (layers * rounds) for _ in range(REPLAYS)]
    return statistics.median(times)


def _elapsed_us(graph: torch.cuda.CUDAGraph) -> float:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def measure(shape: Shape, device: torch.device) -> Row:
    """Check and time one shape; the peer is the faster way of asking PyTorch."""
    setup = build(shape, device)
    check(setup)
    ours = median_us(setup.ours, shape.layers)
    peer = median_us(setup.peer, shape.layers)
    if shape.count > 1:
        rate = f"{shape.flops / ours / 1e6:.0f} TFLOP/s"
        return at_most(f"{shape.name}, µs ({rate})", ours, peer, PREFILL_BAR)
    peer = min(peer, median_us(setup.grouped_peer, shape.layers))
    rate = f"{shape.kv_bytes / ours / 1e3:.0f} GB/s"
    return at_most(f"{shape.name}, µs ({rate})", ours, peer, DECODE_BAR)


def run(shapes: Sequence[Shape]) -> list[Row]:
    """Measure what fits the device's free memory, printing a line for each shape."""
    device = torch.device("cuda")
    print(head())
    rows = []
    for shape in shapes:
        torch.cuda.empty_cache()
        needed = 3 * shape.layers * shape.kv_bytes
        if needed > torch.cuda.mem_get_info()[0]:
            print(f"{shape.name:<30} skipped: needs {needed / 2**30:.0f} GiB", flush=True)
            continue
        rows.append(measure(shape, device))
        print(line(rows[-1]), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = arguments("bench_kernels", __doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    rows: list[Row] = []
    if torch.cuda.is_available():
        print(f"{torch.cuda.get_device_name()}, backend {backend_for(torch.device('cuda'))}")
        print(hardware(("torch", "triton"), args.seed))
        rows = run(QUICK if args.quick else DECODE + PREFILL)
    else:
        print("no CUDA device: the kernels are not measured")
    return finish(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
