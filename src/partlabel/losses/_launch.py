"""Launching a Triton kernel without Triton's look at every argument of every call.

That look takes longer than small kernels run. What it decides depends on types, on which pointers
are aligned to 16 bytes, and on the values of whole numbers: calls that agree in these may share
what was compiled for the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_MANY = 256  # one for each batch size and recipe: nobody uses as many at a time
_compiled: dict[Any, Callable[..., None]] = {}


def launch(
    kernel: Any,
    grid: tuple[int, int],
    tensors: tuple[Tensor, ...],
    numbers: tuple[int, ...],
    floats: tuple[float, ...],
    constants: tuple[int, ...],
    warps: int,
) -> None:
    """Run a kernel; its arguments are in this order, its constants last."""
    device = tensors[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):  # Triton launches where the current device is
            return _launch(kernel, grid, tensors, numbers, floats, constants, warps)
    return _launch(kernel, grid, tensors, numbers, floats, constants, warps)


def _launch(
    kernel: Any,
    grid: tuple[int, int],
    tensors: tuple[Tensor, ...],
    numbers: tuple[int, ...],
    floats: tuple[float, ...],
    constants: tuple[int, ...],
    warps: int,
) -> None:
    arguments = (*tensors, *numbers, *floats, *constants)
    addresses = 0
    for tensor in tensors:
        addresses |= tensor.data_ptr()
    if addresses % 16:
        kernel[grid](*arguments, num_warps=warps)
        return
    kinds = tuple(tensor.dtype for tensor in tensors)
    key = (kernel, grid, kinds, numbers, constants, warps, tensors[0].device)
    run = _compiled.get(key)
    if run is None:
        compiled = kernel[grid](*arguments, num_warps=warps)
        if compiled is not None:  # the interpreter compiles nothing
            if len(_compiled) >= _MANY:
                _compiled.clear()
            _compiled[key] = compiled[(*grid, 1)]
    else:
        run(*arguments)
