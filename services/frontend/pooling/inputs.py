"""Requests for vectors and scores as prompts: one for each text, or for each pair of texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from protocol.errors import InvalidRequest
from protocol.openai import CompletionRequest
from protocol.pooling import PoolingParams, check_task
from protocol.pooling_requests import EmbeddingRequest, Pair, PairFields, PoolingFields, TextFields
from protocol.token_pooling import ColbertRequest, SparseRequest
from protocol.types import GenerateRequest
from services.frontend.model_info import ModelInfo
from services.frontend.pooling.token_weights import TokenWeights
from services.frontend.prompts.guard import Guard
from services.frontend.prompts.maker import OFFLOAD_CHARS, PromptMaker
from services.frontend.prompts.other_templates import PairTemplate
from services.frontend.requests import RequestMaker
from services.frontend.tokenizer import Tokenizer

_TRUNCATE = "truncate_prompt_tokens"
_LEAST_TOKENS = 128  # that are tokenized beyond those kept: WordPiece's words have 100 at most
_CHARS_A_TOKEN = 4  # of most texts, by which a long one is cut before it is tokenized
_MOST_TOKENS = 1 << 20  # of all inputs of a request, which are in memory together
_MOST_BYTES = 1 << 25  # of the answers for each token: of BGE-M3's longest text


class PoolingInputs:
    """The inputs of one frontend, whose parts these are."""

    def __init__(
        self,
        info: ModelInfo,
        tokenizer: Tokenizer,
        prompts: PromptMaker,
        guard: Guard,
        requests: RequestMaker,
    ) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._prompts = prompts
        self.weights = TokenWeights(tokenizer, info.special_tokens)
        self._pairs: PairTemplate | None = None
        if info.pooler is not None and info.pooler.score_tokens:
            self._pairs = PairTemplate(info.templates, info.special_tokens, guard)
        self._requests = requests

    def params(self, request: TextFields) -> PoolingParams:
        """What is wanted of the pooler; `InvalidRequest` if the model does something else."""
        if isinstance(request, SparseRequest):
            return self._params(PoolingParams(form="token_weights"))
        if isinstance(request, ColbertRequest):
            return self._params(PoolingParams(form="token_vectors"))
        if not isinstance(request, EmbeddingRequest):
            return self._params(PoolingParams("classify"))
        normalize = request.normalize if request.use_activation is None else request.use_activation
        return self._params(PoolingParams("embed", request.dimensions, normalize))

    def _params(self, wanted: PoolingParams) -> PoolingParams:
        """With the width of the answer, by which a worker's is checked."""
        pooler = self._info.pooler
        check_task(wanted, pooler)
        assert pooler is not None
        return msgspec.structs.replace(wanted, dimensions=wanted.dimensions or pooler.width)

    async def texts(
        self,
        request: TextFields,
        wanted: PoolingParams,
        given: Sequence[str | list[int]],
        request_id: str,
        fields: Sequence[str] = (),
    ) -> list[GenerateRequest]:
        """One prompt for each text or token list, in order; `fields` are those that they come from,
        parts of `input` by themselves. `InvalidRequest` names the one at fault."""
        plain = _plain(request)
        sampling = await self._requests.checked(plain)
        several = len(given) > 1
        made: list[GenerateRequest] = []
        total = answered = 0
        for index, one in enumerate(given):
            where = fields[index] if fields else f"input[{index}]" if several else "input"
            ids = await self._tokens(request, one, where)
            total = _added_up(total, ids, where)
            answered = _answer_added_up(answered, wanted, len(ids), where)
            name = f"{request_id}-{index}" if several else request_id
            made.append(self._requests.made(plain, name, ids, sampling, where))
            made[-1].pooling = wanted
            await asyncio.sleep(0)  # thousands of texts: others have their turn between two
        return made

    async def pairs(
        self, request: PairFields, pairs: Sequence[Pair], request_id: str
    ) -> list[GenerateRequest]:
        """One prompt for each pair, in order. `InvalidRequest` if the model does not score, or
        names the document at fault."""
        wanted, plain = self._params(PoolingParams("score")), _plain(request)
        sampling = await self._requests.checked(plain)
        made: list[GenerateRequest] = []
        total = 0
        for index, pair in enumerate(pairs):
            ids, second = await self._pair(pair, request.instruction)
            where = pair.document_field
            total = _added_up(total, ids, where)
            made.append(self._requests.made(plain, f"{request_id}-{index}", ids, sampling, where))
            made[-1].pooling = msgspec.structs.replace(wanted, second=second)
            await asyncio.sleep(0)
        return made

    async def _pair(self, pair: Pair, instruction: str | None) -> tuple[list[int], int]:
        """(tokens, the one with which the second text begins if the model is to be told)."""
        query, document, _, param = pair
        num_chars = len(query) + len(document)
        try:
            if self._pairs is None:
                # Far too long to be worth tokenizing, as of other prompts.
                self._prompts.room_beside(num_chars // (4 * self._tokenizer.longest), param)
                joined = partial(self._joined, query, document, instruction)
                return await asyncio.to_thread(joined) if num_chars > OFFLOAD_CHARS else joined()
            text = partial(self._pairs.render, query, document, instruction)
            prompt = await self._prompts.of_chat(text, num_chars, (), add_special_tokens=False)
        except InvalidRequest as error:
            # The template's errors name messages, of which a pair has none.
            error.param = error.param if error.param == "instruction" else param
            raise
        return prompt.token_ids, 0

    def _joined(self, query: str, document: str, instruction: str | None) -> tuple[list[int], int]:
        """As a cross-encoder's tokenizer puts two texts together."""
        if instruction is not None:
            raise InvalidRequest("instruction: this model takes none", param="instruction")
        ids, types = self._tokenizer.encode_pair(query, document)
        return ids, types.index(1) if 1 in types else 0

    async def _tokens(self, request: TextFields, given: str | list[int], param: str) -> list[int]:
        kept = self._kept(request)
        special = request.add_special_tokens is not False
        if kept is None:
            return await self._prompts.of_completion(given, param, add_special_tokens=special)
        side, ids = request.truncation_side, given
        if isinstance(ids, str):
            ids = await self._beginning(ids, kept, side, param, special=special)
        ids = await self._prompts.of_completion(ids, param, add_special_tokens=special)
        if len(ids) <= kept:
            return ids
        added = self._added() if special and isinstance(given, str) else ([], [])
        return _shortened(ids, added, kept, side)

    async def _beginning(
        self, text: str, kept: int, side: str | None, param: str, *, special: bool
    ) -> list[int]:
        """Tokens of a text, of all of it unless so many more than `kept` are found before."""
        # The last ones may be those of half a word.
        enough = kept + max(kept, _LEAST_TOKENS)
        most = self._prompts.most_chars
        chars = min(_CHARS_A_TOKEN * enough, most)
        while True:
            part = _cut(text, chars, side)
            ids = await self._prompts.of_text(part, param, add_special_tokens=special)
            if len(ids) >= enough or chars >= min(len(text), most):
                return ids
            # Tokens may be longer, normalizing may make one character of many.
            chars = min(2 * chars, most)

    def _kept(self, request: TextFields) -> int | None:
        """Tokens of an input that are kept, None for all."""
        wanted, limit = request.truncate_prompt_tokens, self._info.max_model_len
        if wanted is None:
            if request.truncation_side is not None:
                raise InvalidRequest(f"truncation_side needs {_TRUNCATE}", param="truncation_side")
            return None
        if wanted == 0 or wanted > limit:
            raise InvalidRequest(
                f"{_TRUNCATE} is {wanted}, it must be -1 or from 1 to the model's limit of {limit}",
                param=_TRUNCATE,
            )
        return limit if wanted < 0 else wanted

    def _added(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and behind every text."""
        bare = self._tokenizer.encode("a")
        ids = self._tokenizer.encode("a", add_special_tokens=True)
        for start in range(len(ids) - len(bare) + 1):
            # Found by trying: tokenizer.json has its template in several forms.
            if ids[start : start + len(bare)] == bare:
                return ids[:start], ids[start + len(bare) :]
        return [], []


def _added_up(total: int, ids: Sequence[int], param: str) -> int:
    """Tokens of a request so far; `InvalidRequest` if these are too many for one."""
    total += len(ids)
    if total > _MOST_TOKENS:
        raise InvalidRequest(
            f"the inputs have more than {_MOST_TOKENS} tokens together: send them in several"
            " requests",
            param=param,
        )
    return total


def _answer_added_up(total: int, wanted: PoolingParams, tokens: int, param: str) -> int:
    """Bytes of a request's answers so far; `InvalidRequest` if these are none, or too many."""
    if not (added := wanted.answer_bytes(tokens)):
        raise InvalidRequest(f"{param}: no token has a vector beside the first", param=param)
    if wanted.form != "vector" and total + added > _MOST_BYTES:
        raise InvalidRequest(
            f"the answer has more than {_MOST_BYTES // 4} numbers: send a shorter text, or the"
            " inputs in several requests",
            param=param,
        )
    return total + added


def _plain(request: PoolingFields) -> CompletionRequest:
    """A completion of nothing, with what the request says to all of its prompts."""
    return CompletionRequest(
        prompt="",
        model=request.model,
        max_tokens=1,
        temperature=0.0,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def _cut(text: str, chars: int, side: str | None) -> str:
    return text[-chars:] if side == "left" else text[:chars]


def _shortened(
    ids: list[int], added: tuple[list[int], list[int]], kept: int, side: str | None
) -> list[int]:
    """`kept` of the tokens, those that the tokenizer has `added` before and behind among them."""
    before, behind = added
    room = kept - len(before) - len(behind)
    if room < 1:
        return ids[-kept:] if side == "left" else ids[:kept]
    text = ids[len(before) : len(ids) - len(behind)]
    return [*before, *(text[-room:] if side == "left" else text[:room]), *behind]
