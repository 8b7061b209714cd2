"""Which processes of a proxy are started again."""

import pytest

from proxy.processes import BAD_CONFIGURATION, Processes


@pytest.mark.parametrize(("codes", "ends"), [((2,), True), ((1, 2), False), ((-9, 2, 2), False)])
def test_a_configuration_that_was_good_once_is_tried_again(
    codes: tuple[int, ...], ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    processes = Processes(lambda number, parent: 0, 2, 1.0)
    place = processes._places[0]
    for code in codes:
        processes._ended(place, code)
    assert (processes._end_by > 0, processes._code) == (ends, BAD_CONFIGURATION if ends else 0)
    assert ("exit status 2" in caplog.text) is not ends
