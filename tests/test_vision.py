from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from partlabel.vision import load


def test_an_ordinary_module_is_just_imported() -> None:
    assert load("json").loads("1") == 1


def test_other_errors_are_not_swallowed() -> None:
    with pytest.raises(ModuleNotFoundError):
        load("no_such_module_here")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvision_loads_on_a_cpu_build() -> None:
    script = "from partlabel.vision import load; load('torchvision.transforms.v2').Resize(4)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
