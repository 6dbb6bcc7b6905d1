"""One process or many under ``torchrun``, and the few things that they say to each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from partlabel.errors import UsageError
from partlabel.training.allocation import keep_freed_memory


@dataclass(frozen=True)
class Processes:
    """This process among all."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    """How many there are on this machine."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    talk: Any = None
    """For what is no tensor on the device: words between processes must not wait for GPUs."""

    @property
    def main(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, on every one."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.talk)
        return values

    def from_main(self, value: Any) -> Any:
        """What the main process has."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.talk)
        return box[0]

    def add(self, tensor: Tensor) -> Tensor:
        """Sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def copy_from_main(self, tensors: list[Tensor]) -> None:
        """Make tensors those of the main process."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def seed(self, number: int) -> None:
        """Seed all that draws here; torch.manual_seed also looks for devices that are not there."""
        if self.device.type not in ("cpu", "cuda"):
            torch.manual_seed(number)
            return
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(number)

    def wait(self) -> None:
        """Wait for all."""
        if self.world > 1:
            dist.barrier(group=self.talk)


@contextmanager
def processes(device: str = "auto") -> Iterator[Processes]:
    """Join the other processes that ``torchrun`` started, if it did.

    Args:
        device: ``auto`` takes a GPU where there is one, else as torch names devices.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = _device(device, local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    else:
        keep_freed_memory()
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    joined = world > 1 and not dist.is_initialized()
    talk = None
    if joined:
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=30))
        talk = dist.new_group(backend="gloo") if backend == "nccl" else None
    try:
        yield Processes(rank, world, local, together, chosen, talk)
    finally:
        if joined:
            dist.destroy_process_group()


def _device(name: str, local_rank: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"[train] device: {name!r} is no device; say auto, cpu or cuda") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError("[train] device: there is no CUDA device here; say auto or cpu")
        if ":" not in name:
            device = torch.device("cuda", local_rank)
        elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(f"[train] device: {name} is one GPU for all processes; say cuda")
        if device.index >= torch.cuda.device_count():
            found = torch.cuda.device_count()
            raise UsageError(f"[train] device: {device} of {found}; start one process per GPU")
    return device
