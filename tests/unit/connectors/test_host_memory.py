"""How much memory is free, read from trees of files such as Linux shows them."""

from pathlib import Path

import pytest

from connectors.host_memory import RESERVE, MemoryBudget, available_bytes

MEGA = 1 << 20


def machine(root: Path, free: int, membership: str) -> tuple[Path, Path]:
    """The folders that stand for /proc and /sys/fs/cgroup."""
    proc, cgroups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {free // 1024} kB\n")
    (proc / "self" / "cgroup").write_text(membership)
    cgroups.mkdir()
    return proc, cgroups


def group(folder: Path, limit: str, usage: int, cache: int, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\n")


def test_a_machine_without_groups_has_what_it_has_free(tmp_path: Path) -> None:
    assert available_bytes(*machine(tmp_path, 700 * MEGA, "0::/\n")) == 700 * MEGA


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_group_counts_without_its_page_cache(tmp_path: Path, version: int) -> None:
    member = "4:memory:/a/b\n0::/\n" if version == 1 else "0::/a/b\n"
    proc, cgroups = machine(tmp_path, 9000 * MEGA, member)
    root = cgroups / "memory" if version == 1 else cgroups
    group(root / "a", str(3000 * MEGA), 2500 * MEGA, 100 * MEGA, version)
    group(root / "a" / "b", str(2000 * MEGA), 300 * MEGA, 0, version)
    assert available_bytes(proc, cgroups) == 600 * MEGA
    group(root / "a", "max" if version == 2 else str((1 << 63) - 4096), 0, 0, version)
    assert available_bytes(proc, cgroups) == 1700 * MEGA


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """Its tree begins at its group, while the path may be the host's."""
    proc, cgroups = machine(tmp_path, 9000 * MEGA, "0::/docker/0123\n")
    group(cgroups, str(500 * MEGA), 600 * MEGA, 50 * MEGA, 2)
    assert available_bytes(proc, cgroups) == 0


def test_a_budget_counts_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now, free = [100.0], [RESERVE + 10]
    monkeypatch.setattr("connectors.host_memory.time.monotonic", lambda: now[0])
    budget = MemoryBudget(lambda: free[0])
    assert budget.allows(6) and not budget.allows(6) and budget.allows(4)
    assert not budget.allows(1)
    now[0] += 1.0
    assert budget.allows(6)
