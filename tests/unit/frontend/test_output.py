"""Token ids back to text: however they are cut into outputs, the text is that of the whole."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.openai_answers import Usage, encode, encode_event
from protocol.types import PositionLogprobs, RequestOutput, TokenLogprob
from services.frontend.answers import AnswerBuilder
from services.frontend.merging import merge
from services.frontend.model_info import ModelInfo
from services.frontend.output import Gain, OutputAssembler
from services.frontend.spec import OutputSpec
from services.frontend.stopping import StopScanner
from services.frontend.tokenizer import BROKEN, Tokenizer
from tests.support.frontend_helpers import write_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(ModelInfo.load(write_model("qwen3", tmp_path_factory.mktemp("m"))))


def spec(**fields: Any) -> OutputSpec:
    defaults = {"request_id": "r", "model": "m", "chat": True, "prompt_token_ids": [1, 2, 3]}
    return OutputSpec(**{**defaults, **fields})


def output(token_ids: list[int], index: int = 0, **fields: Any) -> RequestOutput:
    return RequestOutput("r", index, token_ids, **fields)


def eos(tokenizer: Tokenizer) -> int:
    token = tokenizer.id("<|im_end|>")
    assert token is not None
    return token


# --- stop strings ---------------------------------------------------------------------------------


def naive_stop(
    text: str, stops: list[str], include: bool, armed_from: int = 0
) -> tuple[str, str | None]:
    """Character by character: the first stop string to be complete, the longest if several are."""
    for end in range(1, len(text) + 1):
        if end <= armed_from:
            continue
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)
PIECES = st.lists(st.text("abc", max_size=5), max_size=8)


@settings(max_examples=600, deadline=None, database=None)
@given(PIECES, STOPS, st.booleans(), st.integers(0, 3))
def test_stop_strings_do_not_depend_on_how_text_is_cut(
    pieces: list[str], stops: list[str], include: bool, unarmed: int
) -> None:
    scanner = StopScanner(stops, include=include)
    sent, stop = "", None
    for number, piece in enumerate(pieces):
        scanned = scanner.push(piece, armed=number >= unarmed)
        sent += scanned.text
        stop = scanned.stop
        if stop is not None:
            break
    else:
        sent += scanner.flush()
    armed_from = sum(map(len, pieces[:unarmed]))
    expected = naive_stop("".join(pieces), stops, include, armed_from)
    if not unarmed or not stops:
        assert (sent, stop) == expected
    else:  # text that came unarmed is out already, so that a stop string may reach back into it
        assert stop == expected[1] and "".join(pieces).startswith(sent)


@given(st.text("abc", max_size=20), STOPS)
def test_only_a_possible_beginning_is_held_back(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops, include=False)
    sent = ""
    for end, char in enumerate(text, 1):
        scanned = scanner.push(char)
        sent += scanned.text
        if scanned.stop is not None:
            return
        held = text[len(sent) : end]
        assert sent + held == text[:end]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


# --- the assembler --------------------------------------------------------------------------------


def cut(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    parts = []
    for size in sizes:
        parts.append(tokens[:size])
        tokens = tokens[size:]
    return [*parts, tokens]


def test_text_is_that_of_the_whole(tokenizer: Tokenizer) -> None:
    stops = st.lists(st.sampled_from(["e", "ed c", "cat", "\n", "é", "xyz", "s a"]), max_size=3)

    @settings(max_examples=400, deadline=None, database=None)
    @given(
        st.lists(st.integers(0, tokenizer.size - 1), max_size=30),
        st.lists(st.integers(0, 5), max_size=10),
        stops,
        st.booleans(),
    )
    def check(tokens: list[int], sizes: list[int], stop: list[str], include: bool) -> None:
        assembler = OutputAssembler(spec(stop=tuple(stop), include_stop_str=include), tokenizer)
        parts = cut(tokens, sizes)
        gains: list[Gain] = []
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            gains.append(assembler.feed(output(part, finish_reason="length" if last else None)))
            if gains[-1].finish_reason is not None:
                break
        text = "".join(gain.text for gain in gains)
        whole = tokenizer.decode(tokens).rstrip(BROKEN)
        expected, stopped_by = naive_stop(whole, stop, include)
        assert text == expected
        assert gains[-1].finish_reason == ("length" if stopped_by is None else "stop")
        assert gains[-1].stop_reason == stopped_by
        used = sum(len(gain.token_ids) for gain in gains)
        assert assembler.usage().completion_tokens == used
        if stopped_by is None:
            assert used == len(tokens)
        assert assembler.finished and not assembler.unfinished()

    check()


def test_nothing_follows_a_stop_string(tokenizer: Tokenizer) -> None:
    assembler = OutputAssembler(spec(stop=("lo",)), tokenizer)
    ids = tokenizer.encode("Hello there")
    gain = assembler.feed(output(ids))
    assert (gain.text, gain.finish_reason, gain.stop_reason) == ("Hel", "stop", "lo")
    assert gain.stopped and assembler.finished
    assert len(gain.token_ids) < len(ids)
    late = assembler.feed(output(ids, finish_reason="length"))
    assert (late.text, late.token_ids, late.finish_reason) == ("", [], None)
    assert assembler.usage().completion_tokens == len(gain.token_ids)


def test_an_engine_that_is_done_need_not_be_told(tokenizer: Tokenizer) -> None:
    assembler = OutputAssembler(spec(stop=("lo",)), tokenizer)
    gain = assembler.feed(output(tokenizer.encode("Hello"), finish_reason="length"))
    assert gain.finish_reason == "stop" and not gain.stopped


def test_stop_strings_wait_for_the_least_number_of_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a a a a a")
    assembler = OutputAssembler(spec(stop=("a",), min_tokens=3), tokenizer)
    texts = [assembler.feed(output([token])) for token in ids]
    assert [gain.finish_reason for gain in texts[:4]] == [None, None, None, "stop"]
    assert "".join(gain.text for gain in texts) == "a a a "


def test_the_token_that_ends_an_answer_is_not_shown(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("Hi"), eos(tokenizer)]
    ends = frozenset({eos(tokenizer)})
    for skip in (True, False):
        assembler = OutputAssembler(spec(end_token_ids=ends, skip_special_tokens=skip), tokenizer)
        gain = assembler.feed(output(ids, finish_reason="stop"))
        assert (gain.text, gain.finish_reason, gain.stop_reason) == ("Hi", "stop", None)
        assert assembler.usage().completion_tokens == len(ids)
    shown = spec(end_token_ids=ends, skip_special_tokens=False, include_stop_str=True)
    gain = OutputAssembler(shown, tokenizer).feed(output(ids, finish_reason="stop"))
    assert gain.text == "Hi<|im_end|>"


def test_a_stop_token_that_is_text_is_not_shown_either(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Hello there.")
    ends = frozenset({ids[-1]})
    assembler = OutputAssembler(spec(end_token_ids=ends), tokenizer)
    gain = assembler.feed(output(ids, finish_reason="stop", stop_reason=ids[-1]))
    assert (gain.text, gain.stop_reason) == ("Hello there", ids[-1])


def test_a_character_is_never_halved(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🎉")
    assert len(ids) > 1
    assembler = OutputAssembler(spec(), tokenizer)
    texts = [assembler.feed(output([token])).text for token in ids]
    assert texts == [""] * (len(ids) - 1) + ["🎉"]
    cut_short = OutputAssembler(spec(), tokenizer)
    assert cut_short.feed(output(ids[:-1], finish_reason="length")).text == ""


def test_choices_are_kept_apart(tokenizer: Tokenizer) -> None:
    assembler = OutputAssembler(spec(n=2, stop=("b",)), tokenizer)
    one, two = tokenizer.encode("abc"), tokenizer.encode("xyz")
    assert assembler.feed(output(one, 0, cached_tokens=2)).text == "a"
    assert assembler.unfinished() == [1]
    gain = assembler.feed(output(two, 1, finish_reason="length", cached_tokens=2))
    assert (gain.index, gain.text) == (1, "xyz")
    assert assembler.finished
    usage = assembler.usage()
    assert (usage.prompt_tokens, usage.total_tokens) == (3, 3 + usage.completion_tokens)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 2


def test_an_answer_goes_on_where_another_worker_left_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("One 🎉 two stop three")
    for place in range(len(ids)):
        assembler = OutputAssembler(spec(stop=("stop",)), tokenizer)
        before = assembler.replay(0, ids[:place])
        gain = assembler.feed(output(ids[place:], finish_reason="length"))
        assert before + gain.text == "One 🎉 two "[: len(before + gain.text)]
        if gain.stop_reason is not None:
            assert before + gain.text == "One 🎉 two "


# --- answers --------------------------------------------------------------------------------------


def position(token: int, *others: tuple[int, float]) -> PositionLogprobs:
    top = [TokenLogprob(other, logprob, rank + 1) for rank, (other, logprob) in enumerate(others)]
    return PositionLogprobs(token, -0.5, 1, top)


def body(answer: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(encode(answer))
    return decoded


def test_a_streamed_chat_is_as_openai_sends_it(tokenizer: Tokenizer) -> None:
    described = spec(n=2, include_usage=True)
    assembler = OutputAssembler(described, tokenizer)
    builder = AnswerBuilder(described, tokenizer, created=7)
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
    builder = AnswerBuilder(spec(), tokenizer)
    assert "usage" not in body(builder.first_chunks()[0])
    assert builder.usage_chunk(Usage(1, 1, 2)) is None
    continuous = AnswerBuilder(spec(continuous_usage=True), tokenizer)
    chunk = body(continuous.chunk(Gain(0, "x", [1]), Usage(1, 1, 2)))
    assert chunk["usage"]["completion_tokens"] == 1


def test_a_gain_nobody_would_see_makes_no_chunk(tokenizer: Tokenizer) -> None:
    builder = AnswerBuilder(spec(), tokenizer)
    assert builder.chunk(Gain(0, "", [5]), Usage(1, 1, 2)) is None
    assert builder.chunk(Gain(0, "", [], finish_reason="stop"), Usage(1, 1, 2)) is not None
    ids = AnswerBuilder(spec(return_token_ids=True), tokenizer)
    assert body(ids.chunk(Gain(0, "", [5]), Usage(1, 1, 2)))["choices"][0]["token_ids"] == [5]
    assert ids.chunk(Gain(0, "", []), Usage(1, 1, 2)) is None


def test_a_whole_chat_is_as_openai_sends_it(tokenizer: Tokenizer) -> None:
    described = spec(n=2, return_token_ids=True, stop=("b",))
    assembler = OutputAssembler(described, tokenizer)
    builder = AnswerBuilder(described, tokenizer, created=7)
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
    builder = AnswerBuilder(described, tokenizer)
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
    builder = AnswerBuilder(described, tokenizer)
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
        builder = AnswerBuilder(described, tokenizer)
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
    builder = AnswerBuilder(spec(chat=False, first_index=3), tokenizer)
    assert builder.first_chunks() == []
    chunk = builder.chunk(Gain(0, "x", [1], finish_reason="stop", stop_reason=9), Usage(1, 1, 2))
    assert chunk is not None
    sent = msgspec.json.decode(encode_event(chunk).removeprefix(b"data: "))
    assert sent["choices"] == [
        {"index": 3, "text": "x", "logprobs": None, "finish_reason": "stop", "stop_reason": 9}
    ]
