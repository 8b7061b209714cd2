"""Log-probabilities of outputs as transformers has them, in float32."""

import torch

from tests.support.reference import Inputs, Reference


def log_probabilities(reference: Reference, inputs: Inputs, output: list[int]) -> torch.Tensor:
    """[len(output), vocabulary]: of all tokens at each place of `output`, which follows the prompt
    of `inputs`."""
    prompt = inputs["input_ids"]
    ids = torch.cat([prompt, torch.tensor([output])], dim=1)
    grown = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if (kinds := grown.get("mm_token_type_ids")) is not None:
        text = torch.zeros(1, len(output), dtype=kinds.dtype)
        grown["mm_token_type_ids"] = torch.cat([kinds, text], dim=1)
    with torch.inference_mode():
        logits = reference.model(**grown).logits[0, prompt.shape[1] - 1 : -1]
    return torch.log_softmax(logits, dim=-1)
