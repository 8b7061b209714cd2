"""Anthropic's Messages API over HTTP."""

from msgspec import convert, to_builtins

from protocol.anthropic_answers import MessageAnswer
from services.frontend.render import Frontend
from tests.support.listening import run
from tests.support.openai_server import Server, asking

PATH = "/v1/messages"
ASKED = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}


def test_a_message_and_what_it_costs(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, message = await ask(PATH, ASKED)
            assert status == 200 and message["stop_reason"] == "max_tokens"
            assert to_builtins(convert(message, MessageAnswer)) == message
            assert message["usage"]["output_tokens"] == 2
            counted = {key: value for key, value in ASKED.items() if key != "max_tokens"}
            told = await ask(f"{PATH}/count_tokens", counted)
            assert told == (200, {"input_tokens": message["usage"]["input_tokens"]})

    run(work)


def test_errors_have_anthropics_form(front: Frontend) -> None:
    async def work() -> None:
        server = Server(front)
        async with asking(server) as (ask, _):
            status, answer = await ask(PATH, {**ASKED, "max_tokens": 0})
            assert (status, answer["type"]) == (400, "error")
            assert answer["error"]["type"] == "invalid_request_error"
            assert "max_tokens" in answer["error"]["message"]
            status, answer = await ask(PATH, {**ASKED, "model": "other"})
            assert (status, answer["error"]["type"]) == (404, "not_found_error")
            assert len(server.seen) == 2  # they are counted as any others

    run(work)
