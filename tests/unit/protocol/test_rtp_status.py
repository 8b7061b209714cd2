"""RTP-LLM's questions about a worker's state."""

import pytest

from protocol.rtp_status import StatusQuery


@pytest.mark.parametrize(("given", "known"), [(None, -1), (-1, -1), (0, 0), (7, 7)])
def test_a_question_without_a_version_knows_nothing(given: int | None, known: int) -> None:
    assert StatusQuery(latest_cache_version=given).keys_since == known
    assert StatusQuery(latest_finished_version=given).ended_since == known
    assert StatusQuery().keys_since == StatusQuery().ended_since == -1
