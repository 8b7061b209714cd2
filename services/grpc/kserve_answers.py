"""What KServe's methods answer with."""

from __future__ import annotations

from services.frontend.answers.output import Gain
from services.grpc.kserve_requests import FINISH, TEXT, Form
from services.grpc.proto import kserve_pb2 as pb
from services.grpc.tensors import packed

_PLATFORM, _VERSION = "triptych", "1"


def model_metadata(model: str) -> pb.ModelMetadata:
    """The tensors that a request may have, and those of an answer."""
    return pb.ModelMetadata(
        name=model,
        versions=[_VERSION],
        platform=_PLATFORM,
        inputs=[
            pb.TensorMetadata(name="text_input", datatype="BYTES", shape=[-1]),
            pb.TensorMetadata(name="streaming", datatype="BOOL", shape=[1]),
            pb.TensorMetadata(name="sampling_parameters", datatype="BYTES", shape=[1]),
            pb.TensorMetadata(name="image", datatype="BYTES", shape=[-1]),
        ],
        outputs=[
            pb.TensorMetadata(name=name, datatype="BYTES", shape=[-1]) for name in (TEXT, FINISH)
        ],
    )


def config_of(model: str) -> pb.ModelConfig:
    """The same in Triton's form."""
    text, boolean = pb.DataType.TYPE_STRING, pb.DataType.TYPE_BOOL
    return pb.ModelConfig(
        name=model,
        platform=_PLATFORM,
        backend=_PLATFORM,
        max_batch_size=0,
        input=[
            pb.ModelInput(name="text_input", data_type=text, dims=[-1]),
            pb.ModelInput(name="streaming", data_type=boolean, dims=[1], optional=True),
            pb.ModelInput(name="sampling_parameters", data_type=text, dims=[1], optional=True),
            pb.ModelInput(name="image", data_type=text, dims=[-1], optional=True),
        ],
        output=[pb.ModelOutput(name=name, data_type=text, dims=[-1]) for name in (TEXT, FINISH)],
        # Triton's word for a request that has any number of responses.
        model_transaction_policy=pb.TransactionPolicy(decoupled=True),
    )


def response_of(wanted: Form, texts: list[str], finishes: list[str]) -> pb.InferResponse:
    """A whole answer: text and finish reason of each choice."""
    values = {TEXT: texts, FINISH: finishes}
    return pb.InferResponse(
        model_name=wanted.model,
        model_version=_VERSION,
        id=wanted.id,
        outputs=[
            pb.Tensor(name=name, datatype="BYTES", shape=[len(texts)]) for name in wanted.outputs
        ],
        raw_output_contents=[packed(values[name]) for name in wanted.outputs],
    )


def piece_of(wanted: Form, gain: Gain, *, final: bool) -> pb.InferResponse:
    """A piece of a streamed answer; `final`: the last one."""
    response = response_of(wanted, [gain.text], [gain.finish_reason or ""])
    # Triton's mark: one request of a stream has any number of responses.
    response.parameters["triton_final_response"].bool_param = final
    response.parameters["index"].int64_param = gain.index
    return response


def end_of(wanted: Form) -> pb.InferResponse:
    """The empty end of a stream, for clients that ask for one."""
    response = pb.InferResponse(model_name=wanted.model, model_version=_VERSION, id=wanted.id)
    response.parameters["triton_final_response"].bool_param = True
    return response
