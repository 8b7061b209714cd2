"""What a number that comes in may be: one set of types for all requests.

Decoding checks them and names the field. Every integer fits 64 bits, which is what messages between
processes carry; what counts tokens fits 32, which is what block keys are made of.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_NAMED_TOKENS = 128
MAX_SHOWN_TOKENS = MAX_LOGPROBS + MAX_NAMED_TOKENS + 1  # beside one token, itself among them
MAX_BEAMS = 16
MOST_RATE = 1000.0  # a second

Int64 = Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Natural = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Positive = Annotated[int, Meta(ge=1, le=INT32_MAX)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0.0)]
Rate = Annotated[float, Meta(gt=0.0, le=MOST_RATE)]

Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Beams = Annotated[int, Meta(ge=0, le=MAX_BEAMS)]
LengthPenalty = Annotated[float, Meta(ge=-10.0, le=10.0)]
NamedTokens = Annotated[tuple[Int64, ...], Meta(max_length=MAX_NAMED_TOKENS)]
Truncation = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
TopK = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
Temperature = Annotated[float, Meta(ge=0.0, le=1e9)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
MinP = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
RepetitionPenalty = Annotated[float, Meta(gt=0.0, le=1e9)]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]
