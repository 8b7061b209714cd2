"""What a worker's load costs: the columns that follow from its rates and from its other columns."""

from __future__ import annotations

from protocol.registry import Rates
from services.master.config import MasterConfig
from services.master.fleet.columns import Columns
from services.master.fleet.learned_rates import UNMEASURED, merged

STEP_SHARE = 0.02  # of an unmeasured decode step that each request adds
_LEAST_BANDWIDTH = 1.0  # bytes per ms: below it a price would leave what floats can hold


class PricedColumns(Columns):
    """Columns of workers of one `kind`. `shares`: the sum of their `share`. `busy_kv_usage`: the
    share of KV blocks in use with which one is full, 0 for no such limit."""

    def __init__(self, kind: str, config: MasterConfig) -> None:
        super().__init__()
        self.kind = kind
        self.shares = 0.0
        self._config = config
        self.busy_kv_usage = config.busy_kv_usage
        self._told: list[Rates] = []
        self._learnt: list[Rates] = []

    def _add_rows(self, count: int) -> None:
        super()._add_rows(count)
        self._told += [UNMEASURED] * count
        self._learnt += [UNMEASURED] * count

    def _reset(self, row: int, *, used: bool) -> None:
        super()._reset(row, used=used)
        self._learnt[row] = UNMEASURED

    def learn(self, row: int, rates: Rates) -> None:
        """What was learnt of a worker; what it says of itself counts for more."""
        self._learnt[row] = rates
        self._set_rates(row)
        self._derive(row)

    def _tell(self, row: int, rates: Rates) -> None:
        """What a worker says of itself."""
        self._told[row] = rates
        self._set_rates(row)

    def rates(self, row: int) -> Rates:
        """What is known of a worker's speed, 0 where nothing is."""
        return merged(self._told[row], self._learnt[row])

    def told(self, row: int) -> tuple[float, float] | None:
        """(ms, ms per token) of an encoder run, or else of a prompt, as the worker has measured it
        itself; None if it has not."""
        rates = self._told[row]
        if self.kind == "encode":
            base, each = rates.encode_base_ms, rates.encode_ms_per_token
        else:
            base, each = rates.prefill_base_ms, rates.prefill_ms_per_token
        return (base, each) if each else None

    def _set_rates(self, row: int) -> None:
        config, rates = self._config, self.rates(row)
        if self.kind == "encode":
            self.base_ms[row] = rates.encode_base_ms
            self.token_ms[row] = rates.encode_ms_per_token or config.encode_ms_per_token
        else:
            self.base_ms[row] = rates.prefill_base_ms
            self.token_ms[row] = rates.prefill_ms_per_token or config.prefill_ms_per_token
        # Either of them: the other may have been measured as 0.
        measured = rates.decode_base_ms or rates.decode_ms_per_request
        guess = 0.0 if measured else config.decode_ms_per_step
        self.cached_ms[row] = rates.prefill_ms_per_cached_token
        self.host_ms[row] = rates.host_ms_per_token
        self.disk_ms[row] = rates.disk_ms_per_token
        self.step_ms[row] = rates.decode_base_ms or guess
        self.step_request_ms[row] = rates.decode_ms_per_request or guess * STEP_SHARE
        self.step_context_ms[row] = rates.decode_ms_per_context_token
        bandwidth = rates.transfer_bytes_per_ms or config.transfer_bytes_per_ms
        self.bandwidth[row] = max(bandwidth, _LEAST_BANDWIDTH)
        self.kv_ms[row] = self.kv_bytes[row] / self.bandwidth[row]

    def _derive(self, row: int) -> None:
        """What follows from a row's load, so that no request has to reckon it for all rows."""
        cells = self.cells
        requests = cells.requests[row]
        each, context = cells.step_request_ms[row], cells.step_context_ms[row]
        step = cells.step_ms[row] + requests * each + cells.context_tokens[row] * context
        more = requests + 1.0
        cells.step_now[row] = step
        cells.more_step_ms[row] = more * each + step
        cells.more_context_ms[row] = more * context
        share = 0.0 if cells.penalty[row] else 1.0 / more
        self.shares += share - cells.share[row]
        cells.share[row] = share
        cells.room[row] = cells.max_running[row] - requests
        cells.spare[row] = cells.free_blocks[row] - cells.least_free[row]

    def _least_free(self, total_blocks: int) -> float:
        usage = self.busy_kv_usage
        return (1.0 - usage) * total_blocks if usage and total_blocks else -1.0
