"""What a step on a CPU frees is there for the next one."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")

ROUNDS, BYTES = 20, 32 << 20


def faults(environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Pages that a process touches for the first time while it makes and frees arrays of 32 MiB."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_allocation"],
        cwd=Path(__file__).parents[1],
        env={**plain, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_freed_arrays_are_used_again() -> None:
    """Aligned pieces fall into place in the first rounds; then no pages are new."""
    found = faults()
    assert found["kept"]
    assert found["before"] >= ROUNDS  # huge pages make fewer
    assert found["after"] < found["before"] / 10


@pytest.mark.parametrize(
    "environment",
    [{"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7"}],
    ids=["environment", "tunables"],
)
def test_settings_of_the_user_are_left_alone(environment: dict[str, str]) -> None:
    assert not faults(environment)["kept"]


def test_training_on_a_cpu_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from partlabel.training import processes as module

    asked: list[bool] = []
    monkeypatch.setattr(module, "keep_freed_memory", lambda: asked.append(True))
    with module.processes("cpu"):
        assert asked


def touched() -> int:
    """Pages that are new in some rounds, in each of which the array before is still there."""
    import resource

    import torch

    start, last = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, torch.empty(0)
    for value in range(ROUNDS):
        last = torch.full((BYTES // 4,), float(value))
    assert last[-1] == ROUNDS - 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start


def measure() -> dict[str, Any]:
    from partlabel.training.allocation import keep_freed_memory

    before, kept, first, after = touched(), keep_freed_memory(), touched(), touched()
    return {"kept": kept, "before": before, "first": first, "after": after}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure()))
