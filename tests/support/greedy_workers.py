"""Workers that speak as vLLM does, with a model whose next token depends on every one before it."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.generate import GENERATE_PATH, RENDER_PATH
from tests.support.relay_workers import CHAT, DONE, Asked, Worker, begin, chunk, send

EOS, FIRST_HALF, SECOND_HALF = 0, 1, 2
PENALTY = 1.25
# A choice of a chat's stream, and of a continuation.
ABORTED = {"index": 0, "delta": {}, "text": "", "token_ids": [], "finish_reason": "abort"}
FINGERPRINT = "greedy-1"
WORDS = [b" w%d" % number for number in range(40)]
WORDS[7], WORDS[9] = b' "token_ids":[1]', b"\n\ndata: "


def next_token(ids: Sequence[int], penalty: float) -> int:
    """A character of two bytes is two tokens, so that the first of them has no text."""
    if ids[-1] == FIRST_HALF:
        return SECOND_HALF
    state = round(penalty * 1000)
    for token in ids:
        state = (state * 31 + token + 7) % 1_000_003
    if state % 4 == 0:
        return FIRST_HALF
    return EOS if state % 41 == 0 else 10 + state % len(WORDS)


def bytes_of(token: int) -> bytes:
    return {EOS: b"", FIRST_HALF: b"\xc3", SECOND_HALF: b"\xa9"}.get(token) or (
        b"" if token == EOS else WORDS[token - 10]
    )


def prompt_of(body: dict[str, Any]) -> list[int]:
    text = "".join(message["content"] for message in body["messages"])
    return [100 + byte for byte in text.encode()]


@dataclass(frozen=True)
class Step:
    ids: list[int]
    text: str
    finish: str | None


def steps(ids: list[int], params: dict[str, Any], per_step: int = 1) -> Iterator[Step]:
    """What greedy decoding makes of a prompt, `per_step` tokens at a time after the first."""
    ids, made, held = list(ids), 0, b""
    while True:
        new: list[int] = []
        text, finish, wanted = "", None, per_step if made else 1
        while len(new) < wanted and finish is None:
            token = next_token(ids, params.get("repetition_penalty", 1.0))
            ids.append(token)
            new.append(token)
            made += 1
            held += bytes_of(token)
            if not held.endswith(b"\xc3"):
                text, held = text + held.decode(), b""
            over = made >= params["max_tokens"]
            finish = "stop" if token == EOS else "length" if over else None
        yield Step(new, text, finish)
        if finish:
            return


def event(**fields: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass
class Greedy(Worker):
    """`created` is in every chunk, so that it shows who has written it. `breaks` ends its streams,
    one after the other, after so many bytes: in the way of `ending`. `resumes`: it has the routes
    for that. `shift` makes its continuations those of another model.
    """

    created: int = 0
    breaks: tuple[int | None, ...] = ()
    ending: str = "drop"
    resumes: bool = True
    per_step: int = 1
    shift: int = 0
    delay_s: float = 0.0
    parses_reasoning: bool = False

    async def respond(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = asked.body
        if asked.path == "/health" or asked.path == "/v1/models":
            await send(writer, b'{"data":[{"id":"m"}]}')
        elif asked.path == CHAT and body.get("stream"):
            await self._stream(writer, list(self.chat(asked)))
        elif asked.path == CHAT:
            kv = {"do_remote_prefill": True, "remote_request_id": "held"}
            whole = {"choices": [{"index": 0}], "kv_transfer_params": kv}
            await send(writer, json.dumps(whole).encode())
        elif asked.path in (RENDER_PATH, GENERATE_PATH) and self.resumes:
            await self._resume(asked, writer)
        else:
            await send(writer, b'{"detail":"Not Found"}', status=404)

    async def _resume(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = asked.body
        if not body:
            await send(writer, b'{"error":{"message":"missing","code":400}}', status=400)
        elif asked.path == RENDER_PATH:
            await send(writer, json.dumps(self._render(body)).encode())
        else:
            assert body["output_mode"] == "text" and body["stream"] is True
            await self._stream(writer, list(self._pieces(body)))

    def _render(self, body: dict[str, Any]) -> dict[str, Any]:
        params = {"temperature": body["temperature"], "repetition_penalty": PENALTY}
        if body.get("max_tokens", 200) != 16:
            params["max_tokens"] = body.get("max_tokens", 200)
        return {
            "request_id": "chatcmpl-x", "token_ids": prompt_of(body), "features": None,
            "sampling_params": params, "stream_options": body.get("stream_options"),
            "reasoning_parser_kwargs": {} if not self.parses_reasoning else {"kwargs": {}},
        }  # fmt: skip

    def chat(self, asked: Asked) -> Iterator[bytes]:
        body, created = asked.body, self.created
        ids = bool(body.get("return_token_ids"))
        name = f"chatcmpl-{asked.headers['x-request-id']}"
        head = {
            "id": name, "object": "chat.completion.chunk", "created": created, "model": "m",
        }  # fmt: skip
        prompt, count = prompt_of(body), 0
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        role |= {"logprobs": None, "finish_reason": None}
        yield event(
            **head, choices=[role], prompt_token_ids=prompt if ids else None, prompt_text=None
        )
        params = {"max_tokens": body.get("max_tokens", 200), "repetition_penalty": PENALTY}
        for step in steps(prompt, params, self.per_step):
            count += len(step.ids)
            choice: dict[str, Any] = {"index": 0, "delta": {"content": step.text}}
            choice |= {"logprobs": None, "finish_reason": step.finish}
            if step.finish:
                choice["stop_reason"] = None
            choice["token_ids"] = step.ids if ids else None
            last = {"system_fingerprint": FINGERPRINT} if step.finish and not usage else {}
            yield event(**head, choices=[choice], **last)
        if usage:
            counts = {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + count}
            counts["completion_tokens"] = count
            yield event(**head, choices=[], usage=counts, system_fingerprint=FINGERPRINT)
        yield DONE

    def _pieces(self, body: dict[str, Any]) -> Iterator[bytes]:
        params = {"max_tokens": 16, **body["sampling_params"]}
        for step in steps(body["token_ids"], params, self.per_step):
            choice = {
                "index": 0, "finish_reason": step.finish, "stop_reason": None,
                "token_ids": [token + self.shift for token in step.ids], "text": step.text,
            }  # fmt: skip
            yield event(request_id="g", usage=None, output_mode="text", choices=[choice])
        yield DONE

    async def _stream(self, writer: asyncio.StreamWriter, events: list[bytes]) -> None:
        limit, self.breaks = (self.breaks[0], self.breaks[1:]) if self.breaks else (None, ())
        await begin(writer)
        for data in events:
            if limit is not None and limit < len(data):
                if limit:
                    await chunk(writer, data[:limit])
                await self._break(writer)
                return
            await chunk(writer, data)
            await asyncio.sleep(self.delay_s)
            limit = None if limit is None else limit - len(data)
        writer.write(b"0\r\n\r\n")

    async def _break(self, writer: asyncio.StreamWriter) -> None:
        if self.ending == "hang":
            await asyncio.sleep(60)
        elif self.ending == "drop":
            writer.close()
        else:
            last = {
                "end": b"", "mark": DONE, "garbage": b"data: {nonsense}\n\n",
                "error": event(error={"message": "engine died", "code": 500}) + DONE,
                "abort": event(choices=[ABORTED]) + DONE,
            }[self.ending]  # fmt: skip
            if last:
                await chunk(writer, last)
            writer.write(b"0\r\n\r\n")
