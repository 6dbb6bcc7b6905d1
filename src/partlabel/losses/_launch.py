"""Launching a Triton kernel without Triton's look at every argument of every call.

That look takes longer than small kernels run. What it decides depends on types, on the values of
whole numbers, and on which pointers are aligned to 16 bytes: calls that agree in these may share
what was compiled for the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

_MANY = 256  # one for each batch size and recipe: nobody uses as many at a time
_plans: dict[Hashable, Plan] = {}


class Plan:
    """A kernel with all its arguments but the tensors, which come first."""

    def __init__(
        self, kernel: Any, grid: tuple[int, int], arguments: tuple[float, ...], warps: int
    ) -> None:
        self.kernel, self.grid, self.arguments, self.warps = kernel, grid, arguments, warps
        self._compiled: Callable[..., None] | None = None

    def launch(self, *tensors: Tensor) -> None:
        """Run the kernel on the current stream of the tensors' device."""
        device = tensors[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):  # Triton launches on the current device
                self._run(tensors)
        else:
            self._run(tensors)

    def _run(self, tensors: tuple[Tensor, ...]) -> None:
        addresses = 0
        for tensor in tensors:
            addresses |= tensor.data_ptr()
        if self._compiled is not None and not addresses % 16:
            self._compiled(*tensors, *self.arguments)
            return
        compiled = self.kernel[self.grid](*tensors, *self.arguments, num_warps=self.warps)
        if compiled is not None and not addresses % 16:  # the interpreter compiles nothing
            self._compiled = compiled[(*self.grid, 1)]


def planned(key: Hashable, make: Callable[[], Plan]) -> Plan:
    """The plan of this key, made where there is none yet.

    The key must hold all that the plan depends on, the types of the tensors and their device too.
    """
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _MANY:
            _plans.clear()
        plan = _plans[key] = make()
    return plan
