"""The language part of a model: embeddings in, logits out, KV in the paged cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from protocol.errors import ConfigError
from protocol.pooling import Pooler
from protocol.refs import KVLayout
from services.engine.attention import paged
from services.engine.attention.batch import PagedBatch
from services.engine.model.adapters import (
    AdapterRows,
    Adapters,
    StepAdapters,
    adapt,
    adaptable_layers,
)
from services.engine.model.family import ModelFamily
from services.engine.model.fused_layers import FusedLayers, FusedOps
from services.engine.model.loader import language_part, load_part, parameter_bytes, read_config
from services.engine.model.packed_linear import InputsSeen, Product, pack, packing
from services.engine.model.probe import LayerShape, Recording, kv_groups
from services.engine.model.quantization import quantize
from services.engine.model.trial import (
    TOLERANCE,
    check_codes,
    error_of_far,
    near_and_far,
    prompts,
    refused_by_name,
    worst_error,
)
from services.engine.sampling.pooler import taken_score_head

logger = logging.getLogger(__name__)
_TRIAL_BLOCK = 16  # tokens: the smallest block that every attention backend takes


@dataclass(frozen=True)
class Inputs:
    """What a step gives the model for T packed tokens."""

    embeds: torch.Tensor  # [T, hidden]
    positions: torch.Tensor  # int64[1 or 3, T]
    rows: torch.Tensor  # int64[S], the tokens whose logits are wanted
    media_mask: torch.Tensor | None = None  # bool[T], set at M tokens; only needed for `deepstack`
    deepstack: tuple[torch.Tensor, ...] = ()  # of each early layer, [M, hidden] to add there
    adapters: tuple[AdapterRows, ...] = ()  # LoRA adapters and the tokens that they change


class LanguageModel(ModelFamily):
    """Weights of the language part only, run through the paged attention."""

    def __init__(
        self,
        model_dir: Path,
        dtype: torch.dtype,
        device: str,
        weight_layout: str = "plain",
        *,
        fused: FusedOps | None = None,
        max_loras: int = 0,
        max_lora_rank: int = 16,
        quantization: str = "",
        kv_codes: str = "",
        pooler: Pooler | None = None,
    ) -> None:
        """`weight_layout`: plain, packed or auto, see `packed_linear.packing`. `fused`: layers use
        these kernels where they suit. `max_loras`: LoRA adapters
        that may be loaded, of up to `max_lora_rank`. `quantization`: see `quantize`, "" for none;
        quantized weights are not packed. `kv_codes`: what the KV cache holds, a name of
        `kv_codes.NUMBERS`, "" for elements of `dtype`. `pooler`: what is answered instead of
        tokens: rows of `forward` are hidden states then, or logits of `score_tokens` alone."""
        paged.register()
        super().__init__(read_config(model_dir), dtype, device)
        self.fused_layers = 0
        self._kv_codes = kv_codes
        self._pooler = pooler
        self._model = load_part(
            model_dir, "language", dtype, device, head=pooler is None or pooler.task == "score"
        )
        # Whether what runs ends with hidden states, to which the head is applied here.
        self._headless = self.takes_media or pooler is not None
        self._text_model = self._text_part()
        score_head = taken_score_head(self._model, pooler) if pooler is not None else None
        self._score_head: torch.nn.Module | None = None
        self._softcap = getattr(self.text_config, "final_logit_softcapping", None)
        layers = adaptable_layers(self._text_model) if max_loras else {}
        if quantization:
            quantize(self._text_model, quantization, dtype, device)
            weight_layout = "plain"
        self.parameter_bytes = parameter_bytes(self._model)
        inputs = InputsSeen(self._model)
        with refused_by_name(self.config.model_type), inputs.recording():
            self.shapes = self._probe()
        if (product := packing(weight_layout, dtype, device)) is not None:
            self._pack(inputs, product)
        self._step_adapters = StepAdapters()
        self.adapters: Adapters | None = None
        if max_loras:
            adapt(self._text_model, layers, self._step_adapters)
            self.adapters = Adapters(layers, max_loras, max_lora_rank, dtype, device)
        with refused_by_name(self.config.model_type):
            self._try(fused)
        self._score_head = score_head  # not before: two logits may both be near 0

    def _text_part(self) -> Any:
        """What a step runs of the model that was loaded."""
        if self.takes_media:
            return getattr(self._model.model, language_part(self._model.model))
        return self._model.base_model if self._headless else self._model

    @property
    def module(self) -> torch.nn.Module:
        return self._model  # type: ignore[no-any-return]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64[T] → [T, hidden]."""
        embedding = self._text_model.get_input_embeddings()
        return embedding(token_ids)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def forward(self, inputs: Inputs, paged: PagedBatch) -> torch.Tensor:
        """Logits float[S, vocabulary] of the wanted rows."""
        self._step_adapters.groups = inputs.adapters
        try:
            return self._run(inputs, paged)
        finally:
            self._step_adapters.groups = ()

    def _run(self, inputs: Inputs, paged: Any) -> torch.Tensor:
        positions = inputs.positions
        keywords: dict[str, Any] = {
            "inputs_embeds": inputs.embeds.unsqueeze(0),
            # Models with rotary positions in three dimensions take [3, batch, T].
            "position_ids": positions.unsqueeze(1) if positions.shape[0] == 3 else positions,
            "use_cache": False,
            "paged": paged,
        }
        if not self._headless:
            output = self._text_model(**keywords, logits_to_keep=inputs.rows)
            return output.logits[0].float()  # type: ignore[no-any-return]
        if inputs.deepstack and inputs.media_mask is not None:
            keywords["visual_pos_masks"] = inputs.media_mask.unsqueeze(0)
            keywords["deepstack_visual_embeds"] = list(inputs.deepstack)
        hidden = self._text_model(**keywords).last_hidden_state[0]
        return self._logits(hidden[inputs.rows])

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] → float[S, vocabulary], for a model whose language part has no head; where it
        pools, float[S, hidden] or logits of the tokens that score."""
        head = self._model.lm_head if self._pooler is None else self._score_head
        if head is None:
            return hidden.float()
        logits = head(hidden).float()
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits  # type: ignore[no-any-return]

    def _pack(self, inputs: InputsSeen, product: type[Product]) -> None:
        """`ConfigError` if the model's own code reads a weight that its layer no longer has."""
        products = pack(self._model, inputs, product)
        if self.device != "cpu":
            torch.cuda.empty_cache()  # of the layers that were merged
        try:
            self._probe()
        except AttributeError as error:
            raise ConfigError(
                f"--weight-layout: model type '{self.config.model_type}' takes plain only: {error}"
            ) from error
        logger.info("linear layers compute %d products, as %s", products, product.__name__)

    @torch.inference_mode()
    def _probe(self) -> dict[int, LayerShape]:
        """Run two tokens and record what each attention layer brings; see `Recording.shapes`."""
        recording = Recording()
        recording.attach(self._text_model)
        ids = torch.zeros(2, dtype=torch.int64, device=self.device)
        self._run(Inputs(self.embed(ids), self._text_positions(torch.arange(2)), ids[:1]), None)
        return recording.shapes(self.text_config)

    @torch.inference_mode()
    def _try(self, fused: FusedOps | None) -> None:
        """Compare the paged path, which is set from here on, with the model's own, and layers that
        are fused if they compute the same."""
        tokens = prompts(self.text_config.vocab_size, self.device)
        self._text_model.set_attn_implementation("eager")
        expected = [self._own_logits(prompt) for prompt in tokens]
        self._text_model.set_attn_implementation(paged.PAGED)

        def run(ids: torch.Tensor, positions: torch.Tensor, batch: PagedBatch) -> torch.Tensor:
            rows = torch.arange(len(ids), device=self.device)
            return self._run(Inputs(self.embed(ids), self._text_positions(positions), rows), batch)

        def error(dtype: str) -> float:
            return worst_error(tokens, expected, run, self._kv_layout(_TRIAL_BLOCK, dtype))

        if (found := error(self._dtype_name)) > (tolerance := TOLERANCE[self.dtype]):
            raise ConfigError(
                f"with paged attention its logits differ by {found:.2g} from the model's own"
            )
        bounds = {self._dtype_name: tolerance}
        if self._kv_codes:
            found = error(self._kv_codes)
            check_codes(found, self._kv_codes)
            bounds[self._kv_codes] = found + tolerance
        if fused is None:
            return
        layout = self._kv_layout(_TRIAL_BLOCK, self._dtype_name)
        own = near_and_far(tokens, run, layout, self.text_config)
        layers = FusedLayers(self._text_model, fused)
        far = error_of_far(near_and_far(tokens, run, layout, self.text_config), own, tolerance / 10)
        errors = {dtype: error(dtype) for dtype in bounds}
        if far or any(errors[dtype] > bound for dtype, bound in bounds.items()):
            layers.release()
            found = max(far, *errors.values())
            logger.warning("fused kernels are not used: logits would differ by %.2g", found)
        self.fused_layers = len(layers)
        logger.info("%d layers use fused kernels", len(layers))

    def _own_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """int64[T] → float[T, vocabulary], as transformers computes them for a prompt."""
        output = self._text_model(input_ids=ids[None], use_cache=False)
        if self._headless:
            return self._logits(output.last_hidden_state[0])
        return output.logits[0].float()  # type: ignore[no-any-return]

    def _text_positions(self, index: torch.Tensor) -> torch.Tensor:
        """Rotary positions int64[1 or 3, T] of text tokens."""
        return index.to(self.device).expand(3 if self.uses_mrope else 1, len(index))

    def kv_layout(self, block_size: int) -> KVLayout:
        """The layout of this model's KV blocks; layers of one shape form a group."""
        return self._kv_layout(block_size, self._kv_codes or self._dtype_name)

    @property
    def _dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def _kv_layout(self, block_size: int, dtype: str) -> KVLayout:
        return KVLayout(groups=kv_groups(self.shapes), block_size=block_size, dtype=dtype)
