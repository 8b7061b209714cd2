"""Token ids back to text: however they are cut into outputs, the text is that of the whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.answers.output import Gain, OutputAssembler
from services.frontend.detokenizer import BROKEN
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer
from tests.support.frontend_helpers import write_model
from tests.support.outputs import naive_stop, output, spec


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(ModelInfo.load(write_model("qwen3", tmp_path_factory.mktemp("m"))))


def eos(tokenizer: Tokenizer) -> int:
    token = tokenizer.id("<|im_end|>")
    assert token is not None
    return token


def cut(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    parts = []
    for size in sizes:
        parts.append(tokens[:size])
        tokens = tokens[size:]
    return [*parts, tokens]


def test_text_is_that_of_the_whole(tokenizer: Tokenizer) -> None:
    stops = st.lists(st.sampled_from(["e", "ed c", "cat", "\n", "é", "xyz", "s a"]), max_size=3)

    @settings(max_examples=130, deadline=None, database=None)
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
