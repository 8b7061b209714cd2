"""The model card."""

from transformers import Qwen2_5_VLForConditionalGeneration


def model_card(
    model: Qwen2_5_VLForConditionalGeneration,
    scores: dict[str, float],
    samples: int,
    minutes: float,
    workers: int,
) -> str:
    """README.md of the model's folder."""
    return "# Triptych demonstration model\n"
