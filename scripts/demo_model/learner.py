"""Losses and the optimizer: bf16 weights for the arithmetic, fp32 masters for the updates."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen2_5_VLForConditionalGeneration

from scripts.demo_model.architecture import build_image_processor
from scripts.demo_model.conversations import RowBatch
from scripts.demo_model.pixels import COLOURS, FORMS, UNCLEAR, PictureBatch
from scripts.demo_model.steps import Step
from scripts.demo_model.vision import BatchedVision, patchify


class Learner(nn.Module):
    """The model in a form that trains fast, with throw-away heads on its image tokens."""

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration) -> None:
        super().__init__()
        self.model = model
        self.language = model.model.language_model
        self.vision = BatchedVision(model.model.visual)
        forms, colours = len(FORMS) + 1, len(COLOURS) + 1
        sizes = {"form": forms, "colour": colours, "ground": 3, "centre": forms, "place": 9}
        width = model.config.vision_config.out_hidden_size
        self.heads = nn.ModuleDict({name: nn.Linear(width, size) for name, size in sizes.items()})
        self._processor = build_image_processor()

    def lower_precision(self) -> None:
        """Turn the parameters to bf16; rotary frequencies stay fp32."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)

    def compile_parts(self) -> None:
        """Compile the two towers (needs a C++ compiler; pays after some minutes)."""
        torch._dynamo.config.recompile_limit = 64
        for module in (*self.language.layers, self.vision):
            module.compile(dynamic=False)

    def see(self, batches: list[PictureBatch]) -> tuple[list[Tensor], Tensor]:
        """Image tokens of every picture [tokens, dim], and the loss of the heads."""
        features: list[Tensor] = []
        losses: list[Tensor] = []
        for batch in batches:
            tokens = self.vision(patchify(batch.pixels, self._processor), batch.grid)
            features += tokens.unbind(0)
            losses.append(self._head_loss(tokens, batch) * tokens.shape[0])
        return features, torch.stack(losses).sum() / len(features)

    def _head_loss(self, tokens: Tensor, batch: PictureBatch) -> Tensor:
        losses = []
        for name, head in self.heads.items():
            logits = head(tokens).flatten(0, 1).float()
            targets = getattr(batch, name).flatten()
            losses.append(F.cross_entropy(logits, targets, ignore_index=UNCLEAR))
        return torch.stack(losses).sum()

    def talk_loss(self, batch: RowBatch, features: list[Tensor]) -> Tensor:
        """Weighted mean loss of the target tokens of a batch of rows."""
        hidden = self.hidden(batch, features)[:, :-1].flatten(0, 1)
        weights, ids = batch.weights[:, 1:].flatten(), batch.ids[:, 1:].flatten()
        count = int((weights > 0).sum())
        # Some positions without a target come along, so that few shapes occur.
        chosen = weights.topk(min(-(-count // 128) * 128, len(weights))).indices
        logits = self.model.lm_head(hidden[chosen]).float()
        losses = F.cross_entropy(logits, ids[chosen], reduction="none")
        return (losses * weights[chosen]).sum() / weights.sum()

    def hidden(self, batch: RowBatch, features: list[Tensor]) -> Tensor:
        """Last hidden states [rows, length, dim]."""
        language = self.language
        hidden = language.embed_tokens(batch.ids)
        is_image = batch.ids == self.model.config.image_token_id
        if batch.pictures:
            seen = torch.cat([features[index] for index in batch.pictures])
            hidden = hidden.masked_scatter(is_image[..., None], seen.to(hidden.dtype))
        turns = language.rotary_emb(hidden, batch.positions)
        mask = torch.zeros(batch.mask.shape, dtype=hidden.dtype, device=hidden.device)
        mask.masked_fill_(~batch.mask, torch.finfo(hidden.dtype).min)
        for layer in language.layers:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=turns)
        out: Tensor = language.norm(hidden)
        return out

    def loss(self, step: Step) -> tuple[Tensor, dict[str, float]]:
        """Loss of a step and its parts by name."""
        features, seen = self.see(step.pictures)
        if not step.rows:
            return seen, {"see": seen.item()}
        talks = [self.talk_loss(batch, features) for batch in step.rows]
        parts = {f"talk{i}": talk.item() for i, talk in enumerate(talks)}
        return torch.stack(talks).sum() + 0.2 * seen, {"see": seen.item(), **parts}


class MasterOptimizer:
    """Muon for the matrices inside the towers and AdamW for the rest, on fp32 copies of bf16
    parameters.

    `scale` gives the factor of the learning rate by parameter name; 0 leaves a parameter as it is.
    With `torch.distributed` running, gradients are averaged over its processes.
    """

    def __init__(self, module: nn.Module, scale: Callable[[str], float]) -> None:
        named = [(name, p) for name, p in module.named_parameters() if scale(name) > 0]
        self._working = [parameter for _, parameter in named]
        self._masters = [parameter.detach().float().clone() for parameter in self._working]
        inside: list[dict[str, Any]] = []
        outside: list[dict[str, Any]] = []
        for (name, parameter), master in zip(named, self._masters, strict=True):
            groups = inside if _is_inner_matrix(name, parameter) else outside
            groups.append({"params": [master], "scale": scale(name)})
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(outside, betas=(0.9, 0.95), weight_decay=0.0),
            torch.optim.Muon(inside, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        ]

    def step(self, lr: float, clock: float) -> tuple[float, float]:
        """One update from the working copies' gradients, clipped to norm 1. Returns the norm and
        the processes' mean `clock`, a reading of time that they all then share."""
        parts = [torch.zeros_like(m) if w.grad is None else w.grad.float()
                 for m, w in zip(self._masters, self._working, strict=True)]  # fmt: skip
        flat = torch.cat([part.flatten() for part in parts] + [parts[0].new_tensor([clock])])
        if dist.is_initialized():
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
        pieces = torch.split(flat[:-1], [part.numel() for part in parts])
        for master, working, piece in zip(self._masters, self._working, pieces, strict=True):
            master.grad = piece.view_as(master)
            working.grad = None
        norm = float(nn.utils.clip_grad_norm_(self._masters, 1.0, error_if_nonfinite=True))
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * group["scale"]
            optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(list[Tensor](self._working), self._masters)
        return norm, float(flat[-1])

    def values(self, module: nn.Module) -> dict[str, Tensor]:
        """The fp32 values of the optimized parameters of `module` by name."""
        pairs = zip(self._working, self._masters, strict=True)
        masters = {id(working): master for working, master in pairs}
        return {
            name: masters[id(parameter)]
            for name, parameter in module.named_parameters()
            if id(parameter) in masters
        }

    def restore(self, module: nn.Module) -> None:
        """Turn `module`, whose parameters these are, to fp32 and give it the exact values."""
        values = self.values(module)
        module.float()
        with torch.no_grad():
            for name, value in values.items():
                module.get_parameter(name).copy_(value)


def _is_inner_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and not ("embed" in name or "head" in name)
