from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("data_type", "shape", "fp32_data", "int32_data")
    class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FP32: _ClassVar[Tensor.DataType]
        INT32: _ClassVar[Tensor.DataType]
    FP32: Tensor.DataType
    INT32: Tensor.DataType
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    FP32_DATA_FIELD_NUMBER: _ClassVar[int]
    INT32_DATA_FIELD_NUMBER: _ClassVar[int]
    data_type: Tensor.DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    fp32_data: bytes
    int32_data: bytes
    def __init__(self, data_type: _Optional[_Union[Tensor.DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., fp32_data: _Optional[bytes] = ..., int32_data: _Optional[bytes] = ...) -> None: ...

class IntVector(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class IntMatrix(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[IntVector]
    def __init__(self, rows: _Optional[_Iterable[_Union[IntVector, _Mapping]]] = ...) -> None: ...

class GenerateConfig(_message.Message):
    __slots__ = ("max_new_tokens", "num_beams", "num_return_sequences", "min_new_tokens", "top_k", "top_p", "temperature", "repetition_penalty", "no_repeat_ngram_size", "random_seed", "top_p_decay", "top_p_min", "top_p_reset_ids", "calculate_loss", "return_incremental", "return_hidden_states", "return_logits", "is_streaming", "timeout_ms", "stop_words_list", "select_tokens_id", "adapter_name", "sp_edit", "return_all_probs", "return_softmax_probs", "return_cum_log_probs", "in_think_mode", "max_thinking_tokens", "ignore_eos", "presence_penalty", "frequency_penalty", "do_sample", "variable_num_beams", "return_all_hidden_states", "combo_token_size", "return_prompt_logits", "json_schema", "regex", "ebnf", "structural_tag")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    NUM_RETURN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANDOM_SEED_FIELD_NUMBER: _ClassVar[int]
    TOP_P_DECAY_FIELD_NUMBER: _ClassVar[int]
    TOP_P_MIN_FIELD_NUMBER: _ClassVar[int]
    TOP_P_RESET_IDS_FIELD_NUMBER: _ClassVar[int]
    CALCULATE_LOSS_FIELD_NUMBER: _ClassVar[int]
    RETURN_INCREMENTAL_FIELD_NUMBER: _ClassVar[int]
    RETURN_HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    RETURN_LOGITS_FIELD_NUMBER: _ClassVar[int]
    IS_STREAMING_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    STOP_WORDS_LIST_FIELD_NUMBER: _ClassVar[int]
    SELECT_TOKENS_ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_NAME_FIELD_NUMBER: _ClassVar[int]
    SP_EDIT_FIELD_NUMBER: _ClassVar[int]
    RETURN_ALL_PROBS_FIELD_NUMBER: _ClassVar[int]
    RETURN_SOFTMAX_PROBS_FIELD_NUMBER: _ClassVar[int]
    RETURN_CUM_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    IN_THINK_MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_THINKING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    DO_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    VARIABLE_NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    RETURN_ALL_HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    COMBO_TOKEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    RETURN_PROMPT_LOGITS_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    EBNF_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    num_beams: int
    num_return_sequences: int
    min_new_tokens: int
    top_k: int
    top_p: float
    temperature: float
    repetition_penalty: float
    no_repeat_ngram_size: _wrappers_pb2.Int32Value
    random_seed: _wrappers_pb2.Int64Value
    top_p_decay: _wrappers_pb2.FloatValue
    top_p_min: _wrappers_pb2.FloatValue
    top_p_reset_ids: _wrappers_pb2.Int32Value
    calculate_loss: int
    return_incremental: bool
    return_hidden_states: bool
    return_logits: bool
    is_streaming: bool
    timeout_ms: int
    stop_words_list: IntMatrix
    select_tokens_id: _containers.RepeatedScalarFieldContainer[int]
    adapter_name: _wrappers_pb2.StringValue
    sp_edit: bool
    return_all_probs: bool
    return_softmax_probs: bool
    return_cum_log_probs: bool
    in_think_mode: bool
    max_thinking_tokens: int
    ignore_eos: bool
    presence_penalty: float
    frequency_penalty: float
    do_sample: bool
    variable_num_beams: _containers.RepeatedScalarFieldContainer[int]
    return_all_hidden_states: bool
    combo_token_size: int
    return_prompt_logits: bool
    json_schema: _wrappers_pb2.StringValue
    regex: _wrappers_pb2.StringValue
    ebnf: _wrappers_pb2.StringValue
    structural_tag: _wrappers_pb2.StringValue
    def __init__(self, max_new_tokens: _Optional[int] = ..., num_beams: _Optional[int] = ..., num_return_sequences: _Optional[int] = ..., min_new_tokens: _Optional[int] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., temperature: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., no_repeat_ngram_size: _Optional[_Union[_wrappers_pb2.Int32Value, _Mapping]] = ..., random_seed: _Optional[_Union[_wrappers_pb2.Int64Value, _Mapping]] = ..., top_p_decay: _Optional[_Union[_wrappers_pb2.FloatValue, _Mapping]] = ..., top_p_min: _Optional[_Union[_wrappers_pb2.FloatValue, _Mapping]] = ..., top_p_reset_ids: _Optional[_Union[_wrappers_pb2.Int32Value, _Mapping]] = ..., calculate_loss: _Optional[int] = ..., return_incremental: bool = ..., return_hidden_states: bool = ..., return_logits: bool = ..., is_streaming: bool = ..., timeout_ms: _Optional[int] = ..., stop_words_list: _Optional[_Union[IntMatrix, _Mapping]] = ..., select_tokens_id: _Optional[_Iterable[int]] = ..., adapter_name: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ..., sp_edit: bool = ..., return_all_probs: bool = ..., return_softmax_probs: bool = ..., return_cum_log_probs: bool = ..., in_think_mode: bool = ..., max_thinking_tokens: _Optional[int] = ..., ignore_eos: bool = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., do_sample: bool = ..., variable_num_beams: _Optional[_Iterable[int]] = ..., return_all_hidden_states: bool = ..., combo_token_size: _Optional[int] = ..., return_prompt_logits: bool = ..., json_schema: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ..., regex: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ..., ebnf: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ..., structural_tag: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ...) -> None: ...

class MultimodalInput(_message.Message):
    __slots__ = ("multimodal_url", "multimodal_type")
    MULTIMODAL_URL_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    multimodal_url: str
    multimodal_type: int
    def __init__(self, multimodal_url: _Optional[str] = ..., multimodal_type: _Optional[int] = ...) -> None: ...

class GenerateInput(_message.Message):
    __slots__ = ("request_id", "token_ids", "multimodal_inputs", "generate_config", "priority")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_INPUTS_FIELD_NUMBER: _ClassVar[int]
    GENERATE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    multimodal_inputs: _containers.RepeatedCompositeFieldContainer[MultimodalInput]
    generate_config: GenerateConfig
    priority: int
    def __init__(self, request_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., multimodal_inputs: _Optional[_Iterable[_Union[MultimodalInput, _Mapping]]] = ..., generate_config: _Optional[_Union[GenerateConfig, _Mapping]] = ..., priority: _Optional[int] = ...) -> None: ...

class AuxInfo(_message.Message):
    __slots__ = ("cost_time_us", "iter_count", "input_len", "total_reuse_len", "prefix_len", "output_len", "step_output_len", "pd_sep", "first_token_cost_time_us")
    COST_TIME_US_FIELD_NUMBER: _ClassVar[int]
    ITER_COUNT_FIELD_NUMBER: _ClassVar[int]
    INPUT_LEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_REUSE_LEN_FIELD_NUMBER: _ClassVar[int]
    PREFIX_LEN_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_LEN_FIELD_NUMBER: _ClassVar[int]
    STEP_OUTPUT_LEN_FIELD_NUMBER: _ClassVar[int]
    PD_SEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_COST_TIME_US_FIELD_NUMBER: _ClassVar[int]
    cost_time_us: int
    iter_count: int
    input_len: int
    total_reuse_len: int
    prefix_len: int
    output_len: int
    step_output_len: int
    pd_sep: bool
    first_token_cost_time_us: int
    def __init__(self, cost_time_us: _Optional[int] = ..., iter_count: _Optional[int] = ..., input_len: _Optional[int] = ..., total_reuse_len: _Optional[int] = ..., prefix_len: _Optional[int] = ..., output_len: _Optional[int] = ..., step_output_len: _Optional[int] = ..., pd_sep: bool = ..., first_token_cost_time_us: _Optional[int] = ...) -> None: ...

class FlattenOutput(_message.Message):
    __slots__ = ("finished", "aux_info", "output_ids")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    AUX_INFO_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    finished: _containers.RepeatedScalarFieldContainer[bool]
    aux_info: _containers.RepeatedCompositeFieldContainer[AuxInfo]
    output_ids: Tensor
    def __init__(self, finished: _Optional[_Iterable[bool]] = ..., aux_info: _Optional[_Iterable[_Union[AuxInfo, _Mapping]]] = ..., output_ids: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class RpcError(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class GenerateOutputs(_message.Message):
    __slots__ = ("request_id", "flatten_output", "error_info")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FLATTEN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_INFO_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    flatten_output: FlattenOutput
    error_info: RpcError
    def __init__(self, request_id: _Optional[int] = ..., flatten_output: _Optional[_Union[FlattenOutput, _Mapping]] = ..., error_info: _Optional[_Union[RpcError, _Mapping]] = ...) -> None: ...

class ErrorDetails(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Health(_message.Message):
    __slots__ = ("health",)
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    health: str
    def __init__(self, health: _Optional[str] = ...) -> None: ...
