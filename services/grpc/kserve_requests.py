"""An inference request of KServe as a completion request of ours.

Inputs are those of Dynamo and of Triton's vLLM backend: `text_input`, `streaming` or `stream`,
`sampling_parameters` (a JSON object), `image` (URLs or base64), `exclude_input_in_output`. What
`parameters` hold are fields of a completion request too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from protocol.decoding import ANY_OBJECT, accepted
from protocol.errors import InvalidRequest, ModelNotFound
from protocol.json_size import check_json
from protocol.openai import CompletionRequest, decode_completion
from services.grpc.proto import kserve_pb2 as pb
from services.grpc.tensors import flag, parameter, texts

TEXT, FINISH = "text_output", "finish_reason"
OUTPUTS = (TEXT, FINISH)
# Of Triton's clients, about the protocol and not about the model.
_PROTOCOL = frozenset(
    {"timeout", "triton_enable_empty_final_response", "binary_data_output", "sequence_id",
     "sequence_start", "sequence_end"}
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """What an answer looks like. `timeout_s`: as Triton's clients set it, None for none.
    `empty_end`: whether a stream ends with a response without text."""

    model: str  # name that the request gave
    id: str  # that the request gave
    stream: bool  # whether parts are answered as they come
    outputs: tuple[str, ...]  # names of the tensors that are answered
    timeout_s: float | None
    empty_end: bool


@dataclass(frozen=True)
class Inference:
    """`request` has the texts as its prompt. `images`: URLs."""

    form: Form
    request: CompletionRequest
    images: list[str]


@dataclass
class _Read:
    """What the inputs say so far."""

    prompts: list[str] | None = None
    images: list[str] = field(default_factory=list)
    stream: bool = False
    echo: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


def read(message: pb.InferRequest, names: tuple[str, ...]) -> Inference:
    """`names`: under which the model is served. `InvalidRequest` names the input or parameter at
    fault, `ModelNotFound` another model."""
    if message.model_name not in names:
        raise ModelNotFound(
            f"model_name: '{message.model_name[:256]}' is not served here", param="model_name"
        )
    given = _Read()
    for index, tensor in enumerate(message.inputs):
        if tensor.name not in _INPUTS:
            raise InvalidRequest(
                f"'{tensor.name[:64]}' is no input; they are {', '.join(_INPUTS)}",
                param=tensor.name[:64],
            )
        _INPUTS[tensor.name](given, message, index)
    if not given.prompts:
        raise InvalidRequest("text_input is missing", param="text_input")
    if given.images and len(given.prompts) > 1:
        raise InvalidRequest("image: pictures go with one text_input", param="image")
    parameters = {name: parameter(value) for name, value in message.parameters.items()}
    own = {name: value for name, value in parameters.items() if name not in _PROTOCOL}
    fields = {**({"echo": True} if given.echo else {}), **given.fields, **own}
    # The input `streaming` says whether it is streamed.
    fields.pop("stream", None)
    prompt = given.prompts if len(given.prompts) > 1 else given.prompts[0]
    body = msgspec.json.encode({**fields, "prompt": prompt, "model": message.model_name})
    timeout = parameters.get("timeout")
    form = Form(
        message.model_name,
        message.id,
        given.stream,
        _outputs(message),
        # Microseconds, as Triton has it.
        int(timeout) / 1e6 if isinstance(timeout, int) and timeout > 0 else None,
        bool(parameters.get("triton_enable_empty_final_response")),
    )
    return Inference(form, decode_completion(body), given.images)


def _outputs(message: pb.InferRequest) -> tuple[str, ...]:
    wanted = tuple(output.name for output in message.outputs) or OUTPUTS
    for name in wanted:
        if name not in OUTPUTS:
            raise InvalidRequest(
                f"'{name[:64]}' is no output; they are {', '.join(OUTPUTS)}", param=name[:64]
            )
    return wanted


def _text(given: _Read, message: pb.InferRequest, index: int) -> None:
    given.prompts = texts(message, index)


def _stream(given: _Read, message: pb.InferRequest, index: int) -> None:
    given.stream = flag(message, index)


def _exclude(given: _Read, message: pb.InferRequest, index: int) -> None:
    given.echo = not flag(message, index)


def _image(given: _Read, message: pb.InferRequest, index: int) -> None:
    given.images = [
        # A URL has its scheme at once, base64 has no colon.
        element if ":" in element[:16] else f"data:image/*;base64,{element}"
        for element in texts(message, index)
    ]


def _sampling(given: _Read, message: pb.InferRequest, index: int) -> None:
    elements = texts(message, index)
    check_json("".join(elements))  # each may be short enough by itself
    for element in elements:
        try:
            given.fields |= accepted(ANY_OBJECT.decode, element.encode())
        except InvalidRequest as error:
            error.param = "sampling_parameters"
            error.message = f"sampling_parameters must be a JSON object: {error.message}"
            raise


_INPUTS: MappingProxyType[str, Callable[[_Read, pb.InferRequest, int], None]] = MappingProxyType(
    {
        "text_input": _text, "streaming": _stream, "stream": _stream, "image": _image,
        "sampling_parameters": _sampling, "exclude_input_in_output": _exclude,
    }
)  # fmt: skip
