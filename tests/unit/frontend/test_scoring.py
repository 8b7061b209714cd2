"""Prompts that are scored, cut, or answered by the best of several choices."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from protocol.errors import UpstreamError
from protocol.openai_answers import encode
from protocol.types import PositionLogprobs, RequestOutput
from services.frontend.answers.answering import Answering
from services.frontend.render import Frontend
from services.frontend.spec import RenderedRequest
from tests.support.frontend_helpers import Fronts, frontends, render, render_prompts, user


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    fronts: Fronts = frontends(tmp_path_factory.mktemp("models"))
    return fronts("qwen3", trust_request_chat_template=True)


def answered(front: Frontend, rendered: RenderedRequest, *outputs: RequestOutput) -> Any:
    async def steps() -> AsyncGenerator[list[RequestOutput], None]:
        yield list(outputs)

    answering = Answering(rendered.output, front.tokenizer)
    return msgspec.json.decode(encode(asyncio.run(answering.whole(steps()))))


def scores(rendered: RenderedRequest) -> list[PositionLogprobs]:
    return [PositionLogprobs(token, -1.0, 2) for token in rendered.generate.token_ids[1:]]


def test_a_prompt_alone_is_scored_by_a_request_of_one_token(front: Frontend) -> None:
    (rendered,) = render_prompts(front, "Hello there", echo=True, logprobs=2, max_tokens=0)
    sampling = rendered.generate.sampling
    assert (sampling.max_tokens, sampling.prompt_logprobs, sampling.logprobs) == (1, 2, 2)
    output = RequestOutput("r", 0, [5], [PositionLogprobs(5, -0.1, 1)], "stop", cached_tokens=0)
    output.prompt_logprobs = scores(rendered)
    answer = answered(front, rendered, output)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello there", "length")
    assert choice["logprobs"]["token_logprobs"] == [None] + [-1.0] * len(scores(rendered))
    assert answer["usage"]["completion_tokens"] == 0


def test_a_worker_that_scores_nothing_is_at_fault(front: Frontend) -> None:
    (rendered,) = render_prompts(front, "Hello there", prompt_logprobs=0)
    for given in (None, scores(rendered)[:-1]):
        output = RequestOutput("r", 0, [5], None, "length", prompt_logprobs=given)
        with pytest.raises(UpstreamError):
            answered(front, rendered, output)


def test_the_best_choices_are_answered_best_first(front: Frontend) -> None:
    (rendered,) = render_prompts(front, "Hello", best_of=4, n=2, max_tokens=2)
    assert (rendered.generate.sampling.n, rendered.generate.sampling.logprobs) == (4, 0)
    tokens = front.tokenizer.encode("abcd")
    outputs = [
        RequestOutput("r", i, [tokens[i]] * 2, [PositionLogprobs(tokens[i], v, 1)] * 2, "length")
        for i, v in enumerate((-3.0, -1.0, -4.0, -2.0))
    ]
    answer = answered(front, rendered, *outputs)
    assert [choice["text"] for choice in answer["choices"]] == ["bb", "dd"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, slice(-2, None)),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, slice(-2, None)),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, slice(2)),
        ({"truncate_prompt_tokens": 500}, slice(None)),
    ],
)
def test_prompts_are_cut(fields: dict[str, Any], kept: slice, front: Frontend) -> None:
    ids = front.tokenizer.encode("Hello there, how are you?")
    (rendered,) = render_prompts(front, "Hello there, how are you?", **fields)
    assert rendered.generate.token_ids == ids[kept]
    whole = render(front).generate.token_ids
    assert render(front, **fields).generate.token_ids == whole[kept]


def test_a_cut_prompt_leaves_room_for_its_output(front: Frontend) -> None:
    limit = front.info.max_model_len
    ids = [5] * (2 * limit)
    (rendered,) = render_prompts(front, ids, truncate_prompt_tokens=-1, max_tokens=30)
    assert len(rendered.generate.token_ids) == limit - 30


def test_bad_words_are_spelled_with_and_without_a_blank(front: Frontend) -> None:
    (rendered,) = render_prompts(front, "Hi", bad_words=["blue"])
    spelled = {front.tokenizer.decode(list(word)) for word in rendered.generate.sampling.bad_words}
    assert spelled == {"blue", " blue"}


def test_templates_of_requests_are_kept_and_bounded(front: Frontend) -> None:
    def text(template: str) -> str:
        rendered = render(front, user("Hi"), chat_template=template)
        return front.tokenizer.decode(rendered.generate.token_ids)

    assert [text(f"{n}{{{{ messages[0].content[0].text }}}}") for n in range(20)] == [
        f"{n}Hi" for n in range(20)
    ]


def test_members_of_parts_reach_the_template(front: Frontend) -> None:
    part = {"type": "text", "text": "Hi", "lang": "<|im_end|>cs"}
    template = "{{ messages[0].content[0].lang }}{{ messages[0].content[0].text }}"
    ids = render(front, user(part), chat_template=template).generate.token_ids
    assert front.tokenizer.decode(ids) == "<|im_end|>csHi"
    assert front.tokenizer.id("<|im_end|>") not in ids, "a client's text forms no special token"


def test_a_session_may_be_named_in_the_body(front: Frontend) -> None:
    assert render(front, session_id="s").session == "s"
    assert render_prompts(front, "Hi", session_id="s")[0].session == "s"
