"""The way out: outputs of an engine to the bytes of an answer.

answering  `Answering`: the parts below together, from outputs to bytes
output     `OutputAssembler`: engine outputs → text per choice, stop strings, finish reasons, usage
form       what the parts of one answer share; `ChunkBuilder`: chunks of a stream
whole      `AnswerBuilder`: whole answers, and several of them as one
logprobs   log-probabilities in OpenAI's forms
rtp        answers to raw requests in RTP-LLM's form
"""
