"""Fields of a relayed body: no client says where workers fetch, and none says one thing twice."""

import json
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from proxy.relay.bodies import RequestBody
from proxy.relay.client_fields import fields_of
from tests.support.listening import run
from tests.support.relay_workers import CHAT, relaying

ELSEWHERE = {"peer_host": "6.6.6.6", "peer_port": 1}
NAMED = {"ec_transfer_params": {"ab" * 32: ELSEWHERE}}
PICTURE = {"type": "image_url", "image_url": None, "uuid": "ab" * 32}
PLAIN = {"model": "m", "messages": [{"role": "user", "content": [PICTURE]}]}


@pytest.mark.parametrize(
    ("body", "judged"),
    [
        (b'{"priority":-5,"priority":0}', {"priority": 0}),
        (b'{"priorit\\u0079":-5, "a":[1], "priority":0}', {"priority": 0, "a": [1]}),
        (b'{"priority":null,"priority":0}', {"priority": 0}),
        (b'{"n":[9],"n":1}', {"n": 1}),
        (b'{"stream":true,"stream":false}', {"stream": False}),
        (b'{"max_tokens":1,"x":{},"max_tokens":2}', {"max_tokens": 2, "x": {}}),
        (b'{"priority":-5,"x":"%b","priority":0}' % (b"x" * 50_000),
         {"priority": 0, "x": "x" * 50_000}),
    ],
)  # fmt: skip
def test_a_field_that_is_said_twice_goes_on_as_it_was_judged(
    body: bytes, judged: dict[str, Any]
) -> None:
    request = RequestBody.parse(body)
    assert not request.as_given and request.fields == judged
    for sent in (request.bare, request.decode_body(None, None, references=False)):
        data = b"".join(sent)
        assert data.count(b":") == len(judged) and json.loads(data) == judged
    sent = request.decode_body(None, {"h": 1}, references=False)
    assert json.loads(b"".join(sent)) == {**judged, "kv_transfer_params": {"h": 1}}


@pytest.mark.parametrize(
    "body",
    [b'{"priority":0,"x":{"priority":1,"n":2},"n":3}', b'{"messages":[{"n":1},{"n":1}],"n":null}',
     b'{"n":1,"x":"\\"n\\":1"}', b'{"model":"\xc3\xa9"}', b"{}"],
)  # fmt: skip
def test_one_that_stands_in_another_is_another(body: bytes) -> None:
    fields, same = fields_of(body, references=False)
    assert same and fields == json.loads(body)


def test_a_request_does_not_jump_the_workers_queue() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            (worker,) = relayed.workers["decode"]
            for path in (CHAT, "/v1/embeddings"):
                body = json.dumps(PLAIN).encode()[:-1] + b', "priority": -5, "priority": 0}'
                assert (await relayed.post(body, path=path))[0] == 200
                assert worker.asked[-1].size == len(json.dumps({**PLAIN, "priority": 0},
                                                               separators=(",", ":")))  # fmt: skip

    run(work)


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("flags", [(), ("--allow-media-references",)])
def test_clients_say_where_embeddings_are_only_if_they_may(
    path: str, flags: tuple[str, ...]
) -> None:
    async def work() -> None:
        async with relaying("ED", *flags) as relayed:
            (worker,) = relayed.workers["decode"]
            assert (await relayed.post({**PLAIN, **NAMED}, path=path))[0] == 200
            assert worker.asked[-1].body == ({**PLAIN, **NAMED} if flags else PLAIN)

    run(work)


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
@pytest.mark.parametrize("value", [{}, "x"])
def test_nor_do_they_say_so_in_extensions(name: str, value: Any) -> None:
    """vLLM takes them for KV handles, and its engine fails at what is no object."""
    body = json.dumps({"vllm_xargs": {name: value}}).encode()
    with pytest.raises(InvalidRequest) as caught:
        RequestBody.parse(body, references=True)
    assert caught.value.param == "vllm_xargs"
    fields, same = fields_of(b'{"vllm_xargs":{"a":1}}', references=False)
    assert same and fields


@pytest.mark.parametrize("handles", [5, "x", [{}], False])
def test_places_of_embeddings_are_an_object(handles: Any) -> None:
    body = json.dumps({"ec_transfer_params": handles}).encode()
    with pytest.raises(InvalidRequest) as caught:
        RequestBody.parse(body)
    assert caught.value.param == "ec_transfer_params"
