"""Every field of vLLM's requests has a row: none is unknown here.

The lists are those of vLLM 0.32, written down by hand.
"""

import tracemalloc

import msgspec
import pytest

from protocol.errors import InvalidRequest
from protocol.openai import decode_chat_batch
from protocol.request_fields import Route
from protocol.request_table import ALL_FIELDS
from tests.unit.protocol.test_request_table import BODIES, DECODERS

SAMPLED = """
    cache_salt frequency_penalty ignore_eos include_stop_str_in_output logit_bias min_p
    model presence_penalty priority repetition_penalty request_id seed session_id
    skip_special_tokens stop stop_token_ids stream structured_outputs temperature top_k top_p user
    vllm_xargs watermarking ec_transfer_params kv_transfer_params mm_payload return_mm_kwargs
"""
COMPLETED = f"""{SAMPLED}
    add_special_tokens allowed_token_ids bad_words echo length_penalty logprob_token_ids logprobs
    max_tokens min_tokens n prompt_logprobs repetition_detection response_format return_token_ids
    return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start
    spaces_between_special_tokens stream_interval stream_options thinking_token_budget
    truncate_prompt_tokens truncation_side use_beam_search
"""
VLLM: dict[Route, str] = {
    "chat": f"""{COMPLETED}
        add_generation_prompt chat_template chat_template_kwargs continue_final_message documents
        include_reasoning max_completion_tokens media_io_kwargs messages mm_processor_kwargs
        parallel_tool_calls reasoning_effort return_prompt_text tool_choice tools top_logprobs
    """,
    "completions": f"{COMPLETED} prompt prompt_embeds suffix",
    "responses": f"""{SAMPLED}
        background chat_template_kwargs enable_response_messages include include_reasoning input
        instructions max_output_tokens max_tool_calls media_io_kwargs metadata mm_processor_kwargs
        parallel_tool_calls previous_input_messages previous_response_id prompt
        prompt_cache_key reasoning service_tier store text tool_choice tools top_logprobs truncation
    """,
    "messages": """
        cache_salt chat_template_kwargs ec_transfer_params kv_transfer_params max_tokens messages
        metadata mm_payload model output_config return_mm_kwargs stop_sequences stream system
        temperature thinking tool_choice tools top_k top_p vllm_xargs watermarking
    """,
}


@pytest.mark.parametrize("route", VLLM)
def test_every_field_of_vllm_has_a_row(route: Route) -> None:
    rows = {row.name for row in ALL_FIELDS if route in row.routes}
    assert {*VLLM[route].split()} - rows == set()


@pytest.mark.parametrize("route", VLLM)
def test_null_of_every_field_of_vllm_is_taken(route: Route) -> None:
    for name in VLLM[route].split():
        if name not in BODIES[route]:
            DECODERS[route](msgspec.json.encode({**BODIES[route], name: None}))
    with pytest.raises(InvalidRequest):
        DECODERS[route](msgspec.json.encode({**BODIES[route], "temprature": None}))


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
