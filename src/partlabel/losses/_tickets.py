"""Counters by which the programs of a kernel know which of them is the last.

A kernel that adds up needs a counter that starts at 0, and leaves it at 0. Making one for each call
would be a kernel of its own. So there is a slab of them on each device: a stream has its own
counter, since kernels of one stream do not overlap; and each call in a captured graph has its own,
since graphs may run on any stream.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_MANY = 4096
_slabs: dict[torch.device, list[Tensor]] = {}
_of_stream: dict[tuple[torch.device, Any], Tensor] = {}


def ticket(device: torch.device) -> Tensor:
    """An int32 counter at 0 for one call on the current stream."""
    if device.type != "cuda":  # Triton's interpreter
        return torch.zeros((), dtype=torch.int32)
    with torch.cuda.device(device):
        capturing = torch.cuda.is_current_stream_capturing()
    key = (device, torch._C._cuda_getCurrentRawStream(device.index))
    if not capturing and key in _of_stream:
        return _of_stream[key]
    slab = _slabs.get(device)
    if not slab:
        if capturing:  # what is made now belongs to the graph: set to 0 in each replay
            return torch.zeros((), dtype=torch.int32, device=device)
        # 16 bytes each: for an address of less Triton compiles another kernel.
        slab = list(torch.zeros(_MANY, 4, dtype=torch.int32, device=device)[:, 0].unbind())
        torch.cuda.synchronize(device)  # other streams take theirs without asking
        _slabs[device] = slab
    taken = slab.pop()
    if not capturing:
        _of_stream[key] = taken
    return taken
