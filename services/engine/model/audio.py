"""Audio of Qwen2-Audio: samples become a spectrum, and that embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoFeatureExtractor
from transformers.masking_utils import create_bidirectional_mask

from protocol.errors import InvalidRequest
from protocol.types import EncodeItem
from services.frontend.audio.reading import AudioReader
from services.frontend.audio.wav import Samples
from services.frontend.clips.readers import ClipReaders
from services.frontend.families.qwen2_audio import AudioWindow

Spectrum = dict[str, torch.Tensor]


class _ProductsInDouble(TorchFunctionMode):
    """Matrix products of this thread, as sums in float64. Those of float32 would follow a setting
    of the whole process, which attention changes meanwhile (`prompt_tiles`)."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.matmul:
            left, right = args
            return (left.double() @ right.double()).float()
        return function(*args, **(kwargs or {}))


class AudioProcessor:
    """Audio of one model directory. Safe to use from several threads at once."""

    def __init__(self, model_dir: Path, readers: ClipReaders | None) -> None:
        """`readers`: of other files than WAV; None: these are refused."""
        self._extractor = AutoFeatureExtractor.from_pretrained(model_dir)
        self._window = AudioWindow(self._extractor.to_dict())
        self._reader = AudioReader(self._window, readers)

    def spectrum(self, item: EncodeItem) -> Spectrum:
        """As `_spectrum`. `InvalidRequest` if the bytes are no audio, not all of it, or of another
        length than the item says."""
        data = item.data or b""
        samples = self._reader.read(data)
        length = self._window.measure(len(samples)).length
        if length != item.length:
            raise InvalidRequest(
                f"media item {item.mm_hash[:16]}: the audio makes {length} embeddings, its"
                f" placeholder span has {item.length} tokens",
                code="embedding_length_mismatch",
            )
        return self._spectrum(samples)

    def silence(self) -> Spectrum:
        """A whole window of it."""
        return self._spectrum(torch.zeros(self._window.most).numpy())

    def _spectrum(self, samples: Samples) -> Spectrum:
        """input_features: float32[1, bands, columns of a whole window]; columns: int64[1], of those
        how many have sound, from the first one on."""
        with _ProductsInDouble():
            found = self._extractor(
                samples,
                sampling_rate=self._window.rate,
                padding="max_length",
                return_attention_mask=True,
                return_tensors="pt",
            )
        return {
            "input_features": found["input_features"],
            "columns": found["attention_mask"].sum(-1),
        }


def positions_of(spectrum: Spectrum) -> int:
    """What the model's layers see of audio of any length."""
    return spectrum["input_features"].shape[-1] // 2


def encode_qwen2_audio(model: Any, batch: Sequence[Spectrum]) -> list[torch.Tensor]:
    """[tokens, hidden] of each, all in one run, as transformers' `Qwen2AudioModel.forward` does it:
    each sees its own sound and not the silence behind it."""
    tower, projector = model.model.audio_tower, model.model.multi_modal_projector
    features = torch.cat([one["input_features"] for one in batch]).to(model.dtype)
    seen, tokens = tower._get_feat_extract_output_lengths(
        torch.cat([one["columns"] for one in batch])
    )
    places = torch.arange(features.shape[-1] // 2, device=features.device)
    mask = create_bidirectional_mask(
        config=tower.config,
        inputs_embeds=features.new_zeros(len(features), len(places), 1),
        attention_mask=(places[None] < seen[:, None]).long(),
    )
    embeddings = projector(tower(features, attention_mask=mask).last_hidden_state)
    return [one[:length] for one, length in zip(embeddings, tokens.tolist(), strict=True)]
