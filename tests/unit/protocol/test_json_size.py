"""JSON that would take long to decode is told from long JSON, before any of it is decoded."""

import json
import random
from collections.abc import Callable
from itertools import product
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import json_size
from protocol.decoding import ANY_JSON, ANY_OBJECT, accepted, finite
from protocol.errors import InvalidRequest, PayloadTooLarge
from protocol.generate import _GENERATE
from protocol.json_size import MOST_ESCAPED, MOST_PLAIN, MOST_VALUES, check_json
from protocol.openai import _CHAT, _COMPLETION, decode_chat, decode_completion
from protocol.responses import _RESPONSES
from protocol.rtp_requests import json_object
from tests.support.thinned import thinned

PICTURE = b"iVBORw0KGgo/" * 700_000
DRAWN = random.Random(1)


def schema() -> str:
    return json.dumps(
        {f"name{i}": {"type": "string", "pattern": "[a-z], ?"} for i in range(70_000)}
    )


def listed(one: bytes, count: int) -> bytes:
    return b'{"messages":[{"role":"user","content":[' + b",".join([one] * count) + b"]}]}"


HEAVY: dict[str, Callable[[], bytes]] = {  # made by the test that takes it
    "lists": lambda: listed(b"[]", MOST_VALUES),
    "lists in lists": lambda: listed(b"[[]]", MOST_VALUES // 2),
    "objects": lambda: listed(b"{}", MOST_VALUES),
    "texts": lambda: listed(b'""', MOST_VALUES),
    "pictures": lambda: listed(b'{"type":"image_url","image_url":{"url":"x"}}', 80_000),
    "lists behind a picture": lambda: (
        b'{"url":"' + PICTURE + b'","a":' + listed(b"[]", MOST_VALUES) + b"}"
    ),
    "lists behind an escape": lambda: (
        b'{"a":"\\"' + b"\\\\" * 9000 + b'","a":[' + b"[]," * MOST_VALUES
    ),
    "numbers": lambda: b'{"prompt":[' + b"7," * (MOST_PLAIN // 2) + b"7]}",
    "digits": lambda: b'{"prompt":[' + (b"7" * 4000 + b",") * (MOST_PLAIN // 4000) + b"7]}",
    "quotes in a text": lambda: (
        b'{"prompt":"' + b'\\"a' * (MOST_ESCAPED // 3) + b'a\\"' * 10_000 + b'"}'
    ),
    "nothing but quotes": lambda: b'"' * (2 * MOST_VALUES + 2),
}


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_json_is_refused_before_it_is_decoded(name: str) -> None:
    decoded: list[bytes] = []
    with pytest.raises(PayloadTooLarge, match=r"more than \d+ .* in its JSON"):
        accepted(decoded.append, HEAVY[name]())
    assert not decoded


@pytest.mark.parametrize("decode", [decode_chat, decode_completion, json_object, check_json])
def test_every_way_to_decode_a_body_refuses_it(decode: Any) -> None:
    with pytest.raises(PayloadTooLarge):
        decode(HEAVY["lists"]())
    with pytest.raises(PayloadTooLarge):
        json_object(json.dumps(HEAVY["lists"]().decode()).encode())


SANE: dict[str, Callable[[], Any]] = {
    "a picture": lambda: {"url": f"data:image/png;base64,{PICTURE.decode()}"},
    "slashes as PHP writes them": lambda: PICTURE.replace(b"/", b"\\/").decode(),
    "many pictures": lambda: [{"url": PICTURE[: 20_000 + i].decode()} for i in range(1000)],
    "a long text with commas": lambda: {"prompt": "well, yes, [so] {it} " * 200_000},
    "a schema in a text": lambda: {"guided_json": schema()},
    "a schema": lambda: {"guided_json": json.loads(schema())},
    "token ids": lambda: {"prompt": DRAWN.choices(range(150_000), k=1_000_000)},
    "inputs of token ids": lambda: {"input": [DRAWN.choices(range(150_000), k=400)] * 2048},
    "turns": lambda: [{"role": "user", "content": [{"text": 'a "b"\n' * 20}]}] * 20_000,
    "tools": lambda: [{"function": {"name": f"f{i}", "strict": {}}} for i in range(20_000)],
    "a bias of each token": lambda: {"logit_bias": {str(i): -1.5 for i in range(152_000)}},
}  # fmt: skip


# Whitespace is not counted, which a body of each kind shows.
INDENTED = ("a schema", "turns", "tools", "a bias of each token")


@pytest.mark.parametrize(
    ("name", "indent"),
    thinned(product(SANE, (None, 2)), lambda name, indent: not indent or name in INDENTED),
)
def test_sane_json_passes_however_long(name: str, indent: int | None) -> None:
    check_json(json.dumps(SANE[name](), indent=indent).encode())


def test_long_texts_are_not_looked_at() -> None:
    with patch.object(json_size, "_whole", wraps=json_size._whole) as looked:
        check_json(b'{"a":"' + PICTURE + b"\\\\" * 100_000 + b'","b":1}')
    assert looked.call_count < 5


class Reference:
    """Counts character by character."""

    def __init__(self, text: str) -> None:
        self.quotes = self.brackets = self.plain = 0
        inside = escaped = False
        for char in text:
            if escaped:
                escaped = False
            elif inside and char == "\\":
                escaped = True
            elif char == '"':
                inside = not inside
                self.quotes += 1
            elif not inside:
                self.brackets += char in "[{"
                self.plain += char not in " \t\r\n"


VALUES = st.recursive(
    st.text('ab"\\[{, /\n', max_size=30) | st.integers() | st.booleans(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('a"\\{', max_size=9), inner),
    max_leaves=20,
)


@given(VALUES, st.integers(1, 20))
def test_counts_are_exact_wherever_windows_end(value: Any, window: int) -> None:
    text = json.dumps(value)
    with patch.object(json_size, "_WINDOW", window):
        size = json_size._Size()
        size.count(text.encode())
    expected = Reference(text)
    # What is between a text's beginning and its last window is passed over, quotes are not.
    assert size._brackets == expected.brackets and size._plain == expected.plain
    assert size._quotes == expected.quotes


@pytest.mark.parametrize("run", [0, 1, 2, 3, 99, 100, 20_000, 20_001])
def test_backslashes_are_counted_over_windows(run: int) -> None:
    data = b"a" + b"\\" * run
    assert json_size.backslashes(data, 0, len(data)) == run
    assert json_size.backslashes(data, 1, len(data)) == run


@pytest.mark.parametrize(
    "decoder",
    [ANY_OBJECT, ANY_JSON, _GENERATE, *(one.decoder for one in (_CHAT, _COMPLETION, _RESPONSES))],
)
def test_no_client_chooses_a_number_that_takes_long(decoder: Any) -> None:
    """msgspec's own way takes 15 microseconds for one like 1e300."""
    assert decoder.float_hook is finite


def test_numbers_are_what_they_were() -> None:
    assert ANY_OBJECT.decode(b'{"a":[1e300,1e-320,-0.5,7]}') == {"a": [1e300, 1e-320, -0.5, 7]}
    for overflow in (b'{"a":1e400}', b'{"a":-1e400}'):
        with pytest.raises(msgspec.ValidationError, match="out of range"):
            ANY_OBJECT.decode(overflow)


def test_biases_are_numbers_made_in_the_same_way() -> None:
    """Fields with any number of floats are decoded as any JSON, and checked then."""
    assert _CHAT.numbers.keys() == _COMPLETION.numbers.keys() == {"logit_bias"}
    assert decode_completion(b'{"prompt":"a","logit_bias":{"1":2,"3":1e300}}').logit_bias == {
        "1": 2.0, "3": 1e300,
    }  # fmt: skip
    for bad, said in ((b'"x"', "expected `float`"), (b"1e400", "number out of range")):
        with pytest.raises(InvalidRequest, match=said) as caught:
            decode_completion(b'{"prompt":"a","logit_bias":{"1":%b}}' % bad)
        assert caught.value.param == "logit_bias"
