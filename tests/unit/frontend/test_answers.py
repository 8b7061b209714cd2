"""What choices gained, in OpenAI's form: chunks and whole answers."""

from typing import Any

import msgspec
import pytest

from protocol.openai_answers import Usage, encode, encode_event
from protocol.types import PositionLogprobs, TokenLogprob
from services.frontend.answers.form import AnswerForm, ChunkBuilder
from services.frontend.answers.output import Gain, OutputAssembler
from services.frontend.answers.whole import AnswerBuilder, merge
from services.frontend.detokenizer import BROKEN
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer
from tests.support.frontend_helpers import write_model
from tests.support.outputs import output, spec


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(ModelInfo.load(write_model("qwen3", tmp_path_factory.mktemp("m"))))


def position(token: int, *others: tuple[int, float]) -> PositionLogprobs:
    top = [TokenLogprob(other, logprob, rank + 1) for rank, (other, logprob) in enumerate(others)]
    return PositionLogprobs(token, -0.5, 1, top)


def body(answer: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(encode(answer))
    return decoded


def test_a_streamed_chat_is_as_openai_sends_it(tokenizer: Tokenizer) -> None:
    described = spec(n=2, include_usage=True)
    assembler = OutputAssembler(described, tokenizer)
    builder = ChunkBuilder(AnswerForm(described, tokenizer, created=7))
    roles = [body(chunk) for chunk in builder.first_chunks()]
    assert [chunk["choices"] for chunk in roles] == [
        [
            {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ]
        for index in range(2)
    ]
    assert roles[0]["id"] == "chatcmpl-r" and roles[0]["object"] == "chat.completion.chunk"
    assert roles[0]["usage"] is None and roles[0]["created"] == 7
    gain = assembler.feed(output(tokenizer.encode("Hi")))
    chunk = body(builder.chunk(gain, assembler.usage()))
    assert chunk["choices"][0]["delta"] == {"content": "Hi"}
    for index in (0, 1):
        last = assembler.feed(output([], index, finish_reason="length"))
        chunk = body(builder.chunk(last, assembler.usage(), kv_transfer_params={"a": 1}))
        (choice,) = chunk["choices"]
        assert (choice["index"], choice["finish_reason"]) == (index, "length")
        assert choice["delta"] == {"content": ""} and choice["stop_reason"] is None
        assert chunk["kv_transfer_params"] == {"a": 1}
    usage = body(builder.usage_chunk(assembler.usage()))
    tokens = len(tokenizer.encode("Hi"))
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": tokens,
        "total_tokens": 3 + tokens,
        "prompt_tokens_details": None,
    }


def test_usage_is_left_out_unless_asked_for(tokenizer: Tokenizer) -> None:
    builder = ChunkBuilder(AnswerForm(spec(), tokenizer))
    assert "usage" not in body(builder.first_chunks()[0])
    assert builder.usage_chunk(Usage(1, 1, 2)) is None
    continuous = ChunkBuilder(AnswerForm(spec(continuous_usage=True), tokenizer))
    chunk = body(continuous.chunk(Gain(0, "x", [1]), Usage(1, 1, 2)))
    assert chunk["usage"]["completion_tokens"] == 1


def test_a_gain_that_no_client_would_see_makes_no_chunk(tokenizer: Tokenizer) -> None:
    builder = ChunkBuilder(AnswerForm(spec(), tokenizer))
    assert builder.chunk(Gain(0, "", [5]), Usage(1, 1, 2)) is None
    assert builder.chunk(Gain(0, "", [], finish_reason="stop"), Usage(1, 1, 2)) is not None
    ids = ChunkBuilder(AnswerForm(spec(return_token_ids=True), tokenizer))
    assert body(ids.chunk(Gain(0, "", [5]), Usage(1, 1, 2)))["choices"][0]["token_ids"] == [5]
    assert ids.chunk(Gain(0, "", []), Usage(1, 1, 2)) is None


def test_a_whole_chat_is_as_openai_sends_it(tokenizer: Tokenizer) -> None:
    described = spec(n=2, return_token_ids=True, stop=("b",))
    assembler = OutputAssembler(described, tokenizer)
    builder = AnswerBuilder(AnswerForm(described, tokenizer, created=7))
    one, two = tokenizer.encode("ab"), tokenizer.encode("xy")
    for index, ids in ((0, one), (1, two)):
        for token in ids:
            builder.add(assembler.feed(output([token], index)))
        builder.add(assembler.feed(output([], index, finish_reason="length")))
    answer = body(builder.answer(assembler.usage(), ec_transfer_params={"h": {}}))
    assert answer["object"] == "chat.completion" and answer["model"] == "m"
    assert answer["prompt_token_ids"] == [1, 2, 3] and answer["ec_transfer_params"] == {"h": {}}
    first, second = answer["choices"]
    assert first["message"] == {"role": "assistant", "content": "a", "refusal": None}
    assert (first["finish_reason"], first["stop_reason"]) == ("stop", "b")
    assert (second["finish_reason"], second["stop_reason"]) == ("length", None)
    assert second["message"]["content"] == "xy" and second["token_ids"] == two
    assert answer["usage"]["completion_tokens"] == len(one) + len(two)


def test_log_probabilities_of_a_chat(tokenizer: Tokenizer) -> None:
    half, other = tokenizer.encode("🎉")[:2]
    described = spec(logprobs=1)
    assembler = OutputAssembler(described, tokenizer)
    builder = ChunkBuilder(AnswerForm(described, tokenizer))
    worse = (other, float("-inf"))
    gain = assembler.feed(output([half], logprobs=[position(half, worse, (half, -9.0))]))
    chunk = body(builder.chunk(gain, assembler.usage()))
    (entry,) = chunk["choices"][0]["logprobs"]["content"]
    assert bytes(entry["bytes"]) == tokenizer.token_bytes(half)
    assert BROKEN in entry["token"] and entry["logprob"] == -0.5
    (top,) = entry["top_logprobs"]
    assert (top["bytes"], top["logprob"]) == (list(tokenizer.token_bytes(other)), -9999.0)


def test_log_probabilities_of_a_completion(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Hello there")
    described = spec(chat=False, logprobs=1, stop=("there",))
    assembler = OutputAssembler(described, tokenizer)
    builder = ChunkBuilder(AnswerForm(described, tokenizer))
    shown: list[dict[str, Any]] = []
    for token in [*ids, *ids]:
        gain = assembler.feed(output([token], logprobs=[position(token, (ids[0], -1.0))]))
        chunk = builder.chunk(gain, assembler.usage())
        if chunk is not None:
            shown.append(body(chunk)["choices"][0]["logprobs"])
    tokens = [token for part in shown for token in part["tokens"]]
    offsets = [offset for part in shown for offset in part["text_offset"]]
    assert "".join(tokens) == "Hello there"
    assert offsets == [len("".join(tokens[:place])) for place in range(len(tokens))]
    assert shown[1]["top_logprobs"][0] == {tokens[0]: -1.0, tokens[1]: -0.5}


def test_completions_of_several_prompts_are_merged(tokenizer: Tokenizer) -> None:
    answers = []
    for first_index in (0, 2):
        described = spec(chat=False, n=2, first_index=first_index)
        assembler = OutputAssembler(described, tokenizer)
        builder = AnswerBuilder(AnswerForm(described, tokenizer))
        for index in (0, 1):
            ids = tokenizer.encode(f"{first_index + index}")
            builder.add(assembler.feed(output(ids, index, finish_reason="length", cached_tokens=1)))
        answers.append(builder.answer(assembler.usage()))
    merged = body(merge(answers))
    assert [(c["index"], c["text"]) for c in merged["choices"]] == [(i, str(i)) for i in range(4)]
    assert merged["object"] == "text_completion" and merged["id"] == "cmpl-r"
    assert merged["usage"]["prompt_tokens"] == 6
    assert merged["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_a_streamed_completion(tokenizer: Tokenizer) -> None:
    builder = ChunkBuilder(AnswerForm(spec(chat=False, first_index=3), tokenizer))
    assert builder.first_chunks() == []
    chunk = builder.chunk(Gain(0, "x", [1], finish_reason="stop", stop_reason=9), Usage(1, 1, 2))
    assert chunk is not None
    sent = msgspec.json.decode(encode_event(chunk).removeprefix(b"data: "))
    assert sent["choices"] == [
        {"index": 3, "text": "x", "logprobs": None, "finish_reason": "stop", "stop_reason": 9}
    ]
