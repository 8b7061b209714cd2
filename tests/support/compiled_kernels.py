"""Triton kernels compiled for GPUs that are not here."""

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
OPTIONS = ("num_warps", "num_stages")
# What a program may use of shared memory, in bytes, on sm_86 and sm_89, which have least.
SHARED_MEMORY = 101_376


def compiled(kernel: Any, arguments: dict[str, Any], capability: int) -> Any:
    """Compile as a launch with these arguments would."""
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTERS[value.dtype]
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(kernel, signature, constants, attributes)
    options = {name: arguments[name] for name in OPTIONS if name in arguments}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
