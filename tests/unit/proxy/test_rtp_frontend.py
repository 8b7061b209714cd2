"""RTP-LLM's frontend routes at the proxy, before scripted workers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from protocol.types import GenerateRequest
from services.frontend.render import Frontend
from tests.support.frontend_helpers import data_url, frontend, picture, write_model
from tests.support.scripted_apps import app_of
from tests.support.scripted_workers import DONE, TOKENS, Worker, before, plainly


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return frontend(write_model("qwen2_5_vl", path))


async def failing(request: GenerateRequest) -> AsyncIterator[bytes]:
    """Two tokens, then an error that no other worker would mend."""
    events = plainly(request)
    yield await anext(events)
    yield b'data: {"error":{"message":"no","code":"context_length_exceeded"}}\n\n'
    yield DONE


async def encoded(body: bytes) -> bytes:
    raise AssertionError("nothing is encoded here")


class Client:
    def __init__(self, url: str) -> None:
        self.url = url

    async def post(self, path: str, body: Any, headers: Any = None) -> tuple[int, Any]:
        """Status and answer; the lines of a stream as they are."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, json=body, headers=headers) as response,
        ):
            streamed = response.content_type == "text/event-stream"
            return response.status, await (response.text() if streamed else response.json())

    async def get(self, path: str) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            return response.status, await response.json()


LIMITED = {"max_new_tokens": len(TOKENS)}


async def test_a_raw_prompt_is_answered_in_rtp_llms_form(front: Frontend) -> None:
    worker = Worker()
    async with before(decode=[worker]) as stack, app_of(stack, front) as url:
        config = {**LIMITED, "top_k": 1, "return_output_ids": True, "return_input_ids": True}
        status, answer = await Client(url).post("/", {"prompt": "Hi", "generate_config": config})
        assert status == 200 and answer["finished"] is True
        assert answer["response"] == front.tokenizer.decode(TOKENS)
        assert answer["output_ids"] == [TOKENS]
        (call,) = worker.calls
        assert answer["input_ids"] == [call.token_ids] == [front.tokenizer.encode("Hi")]
        assert (call.sampling.top_k, call.sampling.max_tokens) == (1, len(TOKENS))
        info = answer["aux_info"]
        assert (info["input_len"], info["output_len"]) == (len(call.token_ids), len(TOKENS))


async def test_raw_outputs_are_as_long_as_there_is_room_for(front: Frontend) -> None:
    worker = Worker()
    async with before(decode=[worker]) as stack, app_of(stack, front) as url:
        assert (await Client(url).post("/", {"prompt": "Hi"}))[0] == 200
        (call,) = worker.calls
        assert call.sampling.max_tokens == front.info.max_model_len - len(call.token_ids)


@pytest.mark.parametrize("incremental", [False, True])
async def test_a_raw_stream_grows_or_has_what_is_new(incremental: bool, front: Frontend) -> None:
    async with before(decode=[Worker()]) as stack, app_of(stack, front) as url:
        config = {**LIMITED, "yield_generator": True, "return_incremental": incremental}
        _, text = await Client(url).post("/", {"prompt": "Hi", "generate_config": config})
        lines = [line.removeprefix("data:") for line in text.split("\r\n\r\n") if line]
        assert lines.pop() == "[done]"
        events = [json.loads(line) for line in lines]
        texts = [event["response"] for event in events]
        whole = "".join(texts) if incremental else texts[-1]
        assert whole == front.tokenizer.decode(TOKENS) and len(texts) > 1
        assert [event["finished"] for event in events][-2:] == [False, True]


async def test_several_prompts_and_several_choices(front: Frontend) -> None:
    async with before(decode=[Worker()]) as stack, app_of(stack, front) as url:
        client, text = Client(url), front.tokenizer.decode(TOKENS)
        _, answer = await client.post("/", {"prompt_batch": ["a", "b"], "generate_config": LIMITED})
        assert [one["response"] for one in answer["response_batch"]] == [text, text]
        config = {**LIMITED, "num_return_sequences": 2, "temperature": 0}
        _, answer = await client.post("/", {"prompt": "a", "generate_config": config})
        assert answer["response"] == [text, text] and len(answer["aux_info"]) == 2


async def test_pictures_of_a_raw_prompt_stand_at_their_marks(front: Frontend) -> None:
    url_of = data_url(picture())
    rendered = await front.render_raw(_completion("What is <img/> this"), [url_of], request_id="r")
    (item,) = rendered.generate.mm_items
    ids = rendered.generate.token_ids
    placeholder = front.family.placeholders["image"]
    assert ids[item.offset : item.offset + item.length] == [placeholder.pad_id] * item.length
    assert rendered.media[item.mm_hash] == picture()
    assert ids[: item.offset][:2] == front.tokenizer.encode("What is ")[:2]
    before_text = await front.render_raw(_completion("this"), [url_of], request_id="r")
    assert before_text.generate.mm_items[0].offset < 2


def _completion(prompt: str) -> Any:
    from protocol.openai import decode_completion

    return decode_completion(json.dumps({"prompt": prompt}).encode())


async def test_errors_have_rtp_llms_codes_too(front: Frontend) -> None:
    async with before(decode=[Worker()]) as stack, app_of(stack, front) as url:
        client = Client(url)
        status, answer = await client.post("/", {"prompt": "x", "num_beams": 4})
        assert (status, answer["error_code"]) == (400, 507)
        assert answer["error"]["param"] == "generate_config.num_beams"
        assert answer["message"] == answer["error"]["message"]
        body = {"prompt": "x", "images": ["http://127.0.0.1/x.png"]}
        status, answer = await client.post("/", body)
        assert (status, answer["error"]["param"]) == (400, "images[0]")
        body = {"prompt": "<img/><img/>", "images": [data_url(picture())]}
        status, answer = await client.post("/", body)
        assert (status, answer["error"]["param"]) == (400, "images")


async def test_a_raw_stream_that_breaks_says_so(front: Frontend) -> None:
    flags = ("--max-retries", "0")
    worker = Worker(failing)
    async with before(decode=[worker], flags=flags) as stack, app_of(stack, front) as url:
        config = {**LIMITED, "yield_generator": True}
        _, text = await Client(url).post("/", {"prompt": "Hi", "generate_config": config})
        last = json.loads(text.split("\r\n\r\n")[-2].removeprefix("data:"))
        assert last["error_code"] and last["message"] and "[done]" not in text


async def test_chats_are_rendered_and_answered_under_rtp_llms_paths(front: Frontend) -> None:
    async with before(decode=[Worker()]) as stack, app_of(stack, front) as url:
        client = Client(url)
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        status, answer = await client.post("/chat/completions", chat)
        assert status == 200 and answer["object"] == "chat.completion"
        for path in ("/chat/render", "/v1/chat/render"):
            status, shown = await client.post(path, {**chat, "stop": "END"})
            assert status == 200 and "Hello" in shown["input_prompt"]
            assert front.tokenizer.encode(shown["input_prompt"]) == shown["input_ids"]
            assert shown["stop_words_list"] == ["END"]
            assert shown["generate_config"]["max_new_tokens"] == 4


async def test_the_tokenizer_answers_in_rtp_llms_form(front: Frontend) -> None:
    async with before(decode=[Worker()]) as stack, app_of(stack, front) as url:
        client = Client(url)
        _, tokens = await client.post("/tokenizer/encode", {"prompt": "Hello there"})
        ids = front.tokenizer.encode("Hello there")
        assert tokens["token_ids"] == ids and "".join(tokens["tokens"]) == "Hello there"
        body = {"prompt": "Hello there", "return_offsets_mapping": True}
        _, tokens = await client.post("/tokenizer/encode", body)
        assert tokens["offset_mapping"][0][0] == 0 and tokens["offset_mapping"][-1][1] == 11
        assert (await client.post("/tokenize", {"prompt": "Hello there"}))[1]["token_ids"] == ids
        status, answer = await client.post("/tokenizer/encode", {"prompt": 5})
        assert (status, answer["error"]["param"]) == (400, "prompt.prompt")


async def test_load_balancers_ask_under_many_paths(front: Frontend) -> None:
    decode, encode = [Worker()], [Worker(encode=encoded)]
    async with (
        before(decode=decode, encode=encode) as stack,
        app_of(stack, front, keys=("secret",)) as url,
    ):
        client = Client(url)
        cm2 = ("/GraphService/cm2_status", "/SearchService/cm2_status")
        for path in ("/status", *cm2):
            assert await client.get(path) == (200, "ok")
        for path in ("/health", "/status", "/health_check", *cm2):
            assert await client.post(path, {}) == (200, "ok")
        assert (await client.post("/", {"prompt": "x"}))[0] == 401
        for instance in stack.fleet.all():
            instance.up = False
        assert (await client.post("/health_check", {}))[0] == 503


async def test_what_cannot_be_changed_is_refused_by_name(front: Frontend) -> None:
    flags = ("--admin-api-key", "k")
    async with before(decode=[Worker()], flags=flags) as stack, app_of(stack, front) as url:
        client, key = Client(url), {"X-API-Key": "k"}
        lora = {"peft_info": {"lora_info": {"a": "/lora/a"}}}
        status, answer = await client.post("/update", lora, key)
        assert status == 404 and answer["workers"], "that worker has no such route"
        status, answer = await client.post("/update", {"peft_info": {"lora_info": {}}}, key)
        assert (status, answer["error"]["param"]) == (400, "peft_info.lora_info")
        for name in ("models_info", "sampler_info"):
            status, answer = await client.post("/update", {name: {"a": "b"}, **lora}, key)
            assert (status, answer["error"]["param"]) == (400, name)
        eplb = {"mode": "EPLB", "update_time": 5000}
        status, answer = await client.post("/update_eplb_config", eplb, key)
        assert (status, answer["error"]["param"]) == (400, "mode")
        none = {"mode": "NONE", "update_time": 5000}
        assert await client.post("/update_eplb_config", none, key) == (200, {"status": "ok"})
        assert (await client.post("/update_eplb_config", none))[0] == 401
