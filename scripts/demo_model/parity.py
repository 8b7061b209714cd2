"""Proof that training computes what transformers computes."""

import torch
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from benchmarks.common.pictures import Question, sample
from scripts.demo_model.conversations import (
    PICTURE,
    RowBatch,
    RowBuilder,
    collate,
    exchange,
    system_turn,
)
from scripts.demo_model.evaluation import model_inputs
from scripts.demo_model.learner import Learner
from scripts.demo_model.pixels import grid_of, picture_batches

TOLERANCE = 1e-4


@torch.no_grad()
def check_parity(
    model: Qwen2_5_VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast
) -> float:
    """Largest difference of next-token logits between the fp32 model and the training path, over
    some held-out questions. Raises RuntimeError beyond `TOLERANCE`."""
    learner = Learner(model)
    worst = 0.0
    for kind in ("describe", "one_of_two", "text"):
        for index in range(4):
            question = sample(kind, index)
            theirs = model(**model_inputs(tokenizer, [question])).logits[0, -1]
            ours = _next_logits(learner, RowBuilder(tokenizer), question)
            worst = max(worst, float((theirs - ours).abs().max()))
    if worst > TOLERANCE:
        raise RuntimeError(f"the training path is off by {worst:.1e}")
    return worst


def _next_logits(learner: Learner, builder: RowBuilder, question: Question) -> torch.Tensor:
    """Logits [vocabulary] of the answer's first token, with another branch beside the question."""
    pictures, places = picture_batches(list(question.scenes))
    features = learner.see(pictures)[0] if pictures else []
    batch, last = _row(builder, question, places)
    logits: torch.Tensor = learner.model.lm_head(learner.hidden(batch, features)[0, last])
    return logits


def _row(builder: RowBuilder, question: Question, places: list[int]) -> tuple[RowBatch, int]:
    grids = [grid_of(scene.width, scene.height) for scene in question.scenes]
    show = PICTURE * len(grids)
    asked = exchange(question)[0][0]
    if question.images_first:
        row = builder.start(system_turn() + show, grids, places)
        builder.add(row, [("Something else.", False)], 1000)
    else:
        row = builder.start(system_turn(), grids, places)
        asked = asked.replace("<|im_end|>", show + "<|im_end|>")
    builder.add(row, [(asked, False)], 1000)
    return collate([row], len(row.ids) + 3), len(row.ids) - 1
