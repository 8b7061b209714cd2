"""A batch of chats in one body."""

import tracemalloc

import msgspec

from protocol.openai import decode_chat_batch

MIB = 1 << 20


def test_fields_in_common_are_held_once() -> None:
    chats = [[{"role": "user", "content": [{"type": "text", "text": str(i)}]}] for i in range(64)]
    data = msgspec.json.encode({"messages": chats, "user": "x" * MIB, "stop": ["a"], "seed": 7})
    tracemalloc.start()
    try:
        decoded = decode_chat_batch(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB
    assert [chat.messages[0].content[0].text for chat in decoded] == [str(i) for i in range(64)]  # type: ignore[union-attr,index]
    assert all((chat.stop, chat.seed) == (["a"], 7) for chat in decoded)
