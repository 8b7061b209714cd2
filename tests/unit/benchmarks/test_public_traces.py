"""Public traces: each format's fields, what prompts share, what is wrong in a file."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.simulate.public_traces import TraceLine, read, repeated, sessions

MOONCAKE = """\
{"timestamp": 5000, "input_length": 1100, "output_length": 20, "hash_ids": [0, 1, 2]}
{"timestamp": 7500, "input_length": 1536, "output_length": 1, "hash_ids": [0, 1, 3]}

{"timestamp": 6000, "input_length": 513, "output_length": 9, "hash_ids": [4, 5]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
AZURE_PICTURES = """\
TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2024-10-15 00:00:01.500000,2,3000,40
2024-10-15 00:00:00.500000,0,30,5
2024-10-15 00:00:02.500000,3,100,7
"""
BURST = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,7,3,ChatGPT,472,18,490,Conversation log
6,8,2,ChatGPT,100,0,100,Conversation log
45,7,4,ChatGPT,1087,230,1317,Conversation log
60,,1,GPT-4,417,276,693,API log
"""
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "trace"
        path.write_text(text)
        return path

    return written


@pytest.mark.parametrize("block_size", [64, 512])
def test_mooncakes_blocks_are_equal_where_they_say(write: Write, block_size: int) -> None:
    found = list(sessions(read(write(MOONCAKE)), block_size, 1))
    assert [session.start for session in found] == [5.0, 6.0, 7.5]
    (first,), (second,), (third,) = (session.turns for session in found)
    assert (first.tokens, second.tokens, third.tokens) == (1100, 513, 1536)
    assert (first.output, third.output) == (20, 2)
    alike = [a == b for a, b in zip(first.keys, third.keys, strict=False)]
    assert alike[: 1024 // block_size] == [True] * (1024 // block_size)
    assert not any(alike[1024 // block_size :])
    assert not set(second.keys) & set(first.keys)


def test_azures_prompts_share_nothing(write: Write) -> None:
    lines = read(write(AZURE))
    assert [(line.tokens, line.output) for line in lines] == [(4808, 10), (3180, 8)]
    assert lines[1].time - lines[0].time == pytest.approx(0.052)
    (one,), (other,) = (session.turns for session in sessions(lines, 128, 1))
    assert not set(one.keys) & set(other.keys)


def test_azures_pictures_fit_into_the_prompt(write: Write) -> None:
    lines = read(write(AZURE_PICTURES))
    assert [line.pictures for line in lines] == [0, 2, 3]
    _, large, small = (session.turns[0] for session in sessions(lines, 128, 1))
    assert [item.tokens for item in large.items] == [576, 576] and large.tokens == 3000
    assert [item.tokens for item in small.items] == [33, 33, 33] and small.tokens == 100
    hashes = [item.mm_hash for item in (*large.items, *small.items)]
    assert len(set(hashes)) == 5


def test_turns_of_a_burst_session_quote_what_came_before(write: Write) -> None:
    lines = read(write(BURST))
    assert len(lines) == 3, "a request without an answer has failed"
    conversation, alone = sessions(lines, 16, 1)
    first, second = conversation.turns
    assert second.think_s == 37.0, "it came 40 s after a request that took 3 s"
    assert second.keys[: len(first.keys)] == first.keys
    assert (alone.start, len(alone.turns)) == (60.0, 1)


def test_a_trace_goes_on_with_other_contents(write: Write) -> None:
    lines = read(write(MOONCAKE))
    found = list(islice(repeated(lines, 64, 1), 6))
    starts = [session.start for session in found]
    assert starts == sorted(set(starts)) and (starts[0], starts[3]) == (0.0, 3.0)
    assert len({session.turns[0].name for session in found}) == 6
    assert not set(found[0].turns[0].keys) & set(found[3].turns[0].keys)
    again = list(islice(repeated(lines, 64, 1), 6))
    assert [s.turns[0].keys for s in again] == [s.turns[0].keys for s in found]


def test_every_seed_begins_at_another_place_and_goes_through_the_whole_trace() -> None:
    lines = [TraceLine(float(time), 10 + time, 2) for time in range(50)]
    found = {}
    for seed in (1, 2):
        made = list(islice(repeated(lines, 64, seed), 50))
        found[seed] = [session.turns[0].tokens for session in made]
        assert [session.start for session in made] == pytest.approx(range(50))
        begin = found[seed][0]
        assert found[seed] == [*range(begin, 60), *range(10, begin)]
    assert found[1] != found[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no line"),
        ("a,b\n1,2\n", "line 1: no known format"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}\nnot', "line 2"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}', "hash_ids"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}', "input_length"),
        ('{"input_length": 1, "output_length": 1, "hash_ids": [1]}', "timestamp"),
        (AZURE + "yesterday,1,1\n", "line 4"),
        (AZURE + "2023-11-16 18:17:05,x,1\n", "line 4"),
        (BURST + "7,,1,GPT-4,-3,5,2,API log\n", "line 6"),
        ("Timestamp,Request tokens,Response tokens\n1,5,0\n", "no request has an answer"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(write: Write, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(write(text))


def test_a_line_without_a_session_is_one_of_its_own() -> None:
    lines = [TraceLine(0.0, 10, 2), TraceLine(1.0, 10, 2)]
    assert [len(session.turns) for session in sessions(lines, 16, 1)] == [1, 1]
