"""Several choices of one KServe request, of which a stop string ends one before the others."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from protocol.generate_answers import ChoiceBody
from protocol.types import FinishReason, GenerateRequest
from services.grpc.proto import kserve_pb2 as pb
from services.grpc.tensors import packed
from tests.support.frontend_helpers import NAME, frontend, write_model
from tests.support.grpc_doors import door_of
from tests.support.scripted_workers import DONE, Worker, before, event

ROWS = [[11, 12, 13, 14], [21, 22, 23, 24]]


async def two_rows(request: GenerateRequest) -> AsyncIterator[bytes]:
    """A token of each choice in an event, to the end of both: no stop string is known here."""
    for at in range(len(ROWS[0])):
        finish: FinishReason | None = "length" if at == len(ROWS[0]) - 1 else None
        yield event(request, *(ChoiceBody(i, [row[at]], finish) for i, row in enumerate(ROWS)))
    yield DONE


async def test_a_choice_that_has_ended_keeps_its_reason(tmp_path: Path) -> None:
    front = frontend(write_model("qwen2_5_vl", tmp_path / "tiny"))
    stop = front.tokenizer.decode(ROWS[0][1:2])
    assert stop not in front.tokenizer.decode(ROWS[1])
    asked = pb.InferRequest(model_name=NAME, raw_input_contents=[packed(["Hi"])])
    asked.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    asked.parameters["n"].int64_param = 2
    asked.parameters["max_tokens"].int64_param = len(ROWS[0])
    asked.parameters["stop"].string_param = stop
    async with (
        before(decode=[Worker(two_rows)]) as stack,
        door_of(stack, front) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer", None, pb.InferResponse.FromString
        )
        answer = await call(asked.SerializeToString())
    assert list(answer.raw_output_contents) == [
        packed([front.tokenizer.decode(ROWS[0][:1]), front.tokenizer.decode(ROWS[1])]),
        packed(["stop", "length"]),
    ]
