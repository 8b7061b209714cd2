"""What attacks are compared with: a process that computes and does nothing else."""

from pathlib import Path

from benchmarks.attack.loads import computing
from benchmarks.soak.books import cpu_s
from tests.support.waiting import until


def test_a_process_computes_as_long_as_it_is_wanted() -> None:
    with computing(1.0) as pid:
        before = cpu_s(pid)
        until(lambda: cpu_s(pid) >= before + 0.1, "it computes", bound_s=60.0)
    assert not Path(f"/proc/{pid}").exists()
