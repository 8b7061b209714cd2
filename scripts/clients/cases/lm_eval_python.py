"""lm-eval's `local-completions`: log-likelihoods equal to transformers', and greedy texts."""

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from report import SITE, holds, run, same

NEAR = 1e-3
model = LocalCompletionsAPI(
    base_url=SITE["url"] + "/v1/completions",
    model=SITE["model"],
    tokenizer=SITE["folder"],
    tokenizer_backend="huggingface",
    num_concurrent=4,
    max_retries=1,
    max_length=1024,
)


def asked(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, given, index) for index, given in enumerate(arguments)]


def loglikelihoods() -> None:
    wanted = SITE["likelihoods"]
    requests = asked("loglikelihood", [(one["context"], one["rest"]) for one in wanted])
    found = model.loglikelihood(requests, disable_tqdm=True)
    same(len(found), len(wanted))
    for (value, greedy), one in zip(found, wanted, strict=True):
        holds(abs(value - one["value"]) < NEAR, f"{value} is not {one}")
        same(bool(greedy), one["greedy"])


def generated() -> None:
    given = {"until": ["\n\n\n"], "max_gen_toks": 8, "temperature": 0}
    texts = [one["context"] for one in SITE["likelihoods"]]
    found = model.generate_until(
        asked("generate_until", [(text, given) for text in texts]), disable_tqdm=True
    )
    same(found, [one["goes_on"] for one in SITE["likelihoods"]])


if __name__ == "__main__":
    run(loglikelihoods, generated)
