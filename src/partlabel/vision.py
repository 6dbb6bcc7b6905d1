"""timm and torchvision on a CPU build of torch, where their plain import fails.

The registry's torchvision is built for CUDA: on a CPU torch its import stops at the first operator
that was not compiled in. The operators themselves are not needed here (they are for detection),
only the transforms, so their schemas are declared and the import is tried once more.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

_MISSING = "operator torchvision::nms does not exist"


def load(name: str) -> ModuleType:
    """Import a module that needs torchvision, as ``load("timm")``."""
    try:
        return import_module(name)
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
    import torch

    for half in [key for key in sys.modules if key.split(".")[0] in ("torchvision", "timm")]:
        del sys.modules[half]
    torch.library.define(
        "torchvision::nms", "(Tensor dets, Tensor scores, float threshold) -> Tensor"
    )
    torch.library.define(
        "torchvision::qnms", "(Tensor dets, Tensor scores, float threshold) -> Tensor"
    )
    return import_module(name)
