"""How often PyTorch's attention is called."""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


class AttentionCalls(TorchFunctionMode):
    """`count` of the calls while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.count += func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))
