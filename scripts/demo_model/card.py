"""The model card."""

from transformers import Qwen2_5_VLForConditionalGeneration

from benchmarks.common.pictures import sample
from benchmarks.common.scenes import DIGITS, GROUNDS, MAX_THINGS, SHAPES, TONES

CLAIMED = 0.9  # share of right answers from which the card says that the model can do it

CARD = """\
---
license: apache-2.0
pipeline_tag: image-text-to-text
---

# Triptych demonstration model

A toy with the architecture of Qwen2.5-VL ({size:.1f} million parameters), so that a picture can be
asked about with no download, and a test notices when the embeddings of two pictures are mixed up.
`scripts/train_demo_model.py` trained it from nothing on pictures that it drew itself
(`benchmarks/common/pictures.py`): {minutes:.0f} minutes in each of {workers}
process(es){continued}.
The schedule follows the clock, so a new run gives a similar model, not the same one.

## What it is

It knows one small world: 1 to {things} things that do not overlap on a plain background, in
pictures that are square or up to 4:3, and it answers in short, fixed sentences.

- things: {shapes}, and at most one digit ({digits})
- colours: {colours}
- backgrounds: {grounds}

What it can do on pictures it never saw, as the share of answers that are right to the letter
({samples} held-out questions per kind, greedy, fp32):

{claims}

## What it is not

It is no general model. A photograph, another shape or colour, overlapping things, a question of
another kind or in quite other words gets a wrong answer in a confident tone. Plain text turns are a
few dozen remembered ones. It has seen at most two pictures and two exchanges in one conversation,
and no video.

## Accuracy of every kind of question

| kind | accuracy | example | right answer |
|---|---|---|---|
{table}
"""


def model_card(
    model: Qwen2_5_VLForConditionalGeneration,
    scores: dict[str, float],
    samples: int,
    minutes: float,
    workers: int,
    continued: bool,
) -> str:
    """README.md of the model's folder."""
    claims = [f"- {kind}: {score:.3f}" for kind, score in scores.items() if score >= CLAIMED]
    return CARD.format(
        size=sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        minutes=minutes,
        workers=workers,
        continued=", in several sittings" if continued else "",
        things=MAX_THINGS,
        shapes=", ".join(SHAPES),
        digits=f"{DIGITS[0]} to {DIGITS[-1]}",
        colours=", ".join(TONES),
        grounds=", ".join(GROUNDS),
        samples=samples,
        claims="\n".join(claims) or "- nothing reliably; it needs more training",
        table="\n".join(_line(kind, score) for kind, score in scores.items()),
    )


def _line(kind: str, score: float) -> str:
    question = sample(kind, 0)
    return f"| {kind} | {score:.3f} | {question.text} | {question.answer} |"
