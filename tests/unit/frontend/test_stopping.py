"""Stop strings, however the text is cut."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.answers.stop_strings import StopScanner
from tests.support.outputs import naive_stop

STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)
PIECES = st.lists(st.text("abc", max_size=5), max_size=8)


@settings(max_examples=200, deadline=None, database=None)
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
