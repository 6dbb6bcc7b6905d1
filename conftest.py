"""Before anything is collected: how Triton runs, and what cannot be imported without it."""

from __future__ import annotations

import importlib.util
import os

import torch

# Triton reads this when it is first imported. Without a GPU its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
if importlib.util.find_spec("triton") is None:
    names = ("_device", "_fused", "_kernels", "_search")
    collect_ignore = [f"src/partlabel/losses/{name}.py" for name in names]
    collect_ignore.append("tests/fused_kernels.py")
