"""What BGE-M3 has beside its transformer: linear layers that say something of each token.

`sparse_linear.pt` and `colbert_linear.pt` hold a weight and a bias each, as PyTorch pickles them;
they are read as tensors alone, so that no file can run code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, normalize

from protocol.errors import ConfigError
from protocol.pooling import Form, Pooler

_MOST_BYTES_EACH, _MOST_OTHER_BYTES = 8, 1 << 16  # float64 numbers, and what is around them


class TokenHeads:
    """The layers of `pooler.forms`, in float32: they are small, and their numbers are answers."""

    def __init__(self, model_dir: Path, pooler: Pooler, device: str) -> None:
        """`ConfigError` names the file that is not as it should be."""
        width = pooler.width
        self._sparse = self._colbert = (torch.empty(0), torch.empty(0))
        if "token_weights" in pooler.forms:
            self._sparse = _layer(model_dir / "sparse_linear.pt", 1, width, device)
        if "token_vectors" in pooler.forms:
            self._colbert = _layer(model_dir / "colbert_linear.pt", width, width, device)

    def answer(self, form: Form, hidden: torch.Tensor) -> torch.Tensor:
        """hidden float[T, width] → weights float[T], none below 0, or vectors of length 1
        float[T - 1, width]: the first token stands for the whole input."""
        if form == "token_weights":
            return torch.relu(linear(hidden.float(), *self._sparse)).squeeze(-1)
        return normalize(linear(hidden[1:].float(), *self._colbert), dim=-1)


def _layer(file: Path, rows: int, columns: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight [rows, columns], bias [rows])."""
    most = _MOST_BYTES_EACH * rows * columns + _MOST_OTHER_BYTES
    try:
        size = file.stat().st_size
        state: Any = (
            torch.load(file, map_location="cpu", weights_only=True) if size <= most else None
        )
    except OSError as error:
        raise ConfigError(f"--model: cannot read {file}: {error.strerror or error}") from error
    except Exception as error:  # any error that a bad byte leads the unpickler to
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"--model: cannot read {file}: {reason}") from error
    # Not raised above, where it would be taken for an unreadable file.
    if size > most:
        raise ConfigError(f"--model: {file} has {size} bytes, at most {most} are read")
    try:
        weight, bias = state["weight"], state["bias"]
        shapes = [*weight.shape], [*bias.shape]
        floats = weight.is_floating_point() and bias.is_floating_point()
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"--model: {file} holds no weight and bias") from error
    if shapes != ([rows, columns], [rows]) or not floats:
        raise ConfigError(
            f"--model: {file} has a weight {shapes[0]} of {weight.dtype} and a bias {shapes[1]} of"
            f" {bias.dtype}: only [{rows}, {columns}] and [{rows}] of floats are served"
        )
    return weight.to(device, torch.float32), bias.to(device, torch.float32)
