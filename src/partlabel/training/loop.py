"""The loop. Everything in it follows from the settings and the step, so a run can be resumed."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from partlabel.config import Config
from partlabel.draw import mix, seed_key
from partlabel.losses.base import PartialLoss
from partlabel.model import Classifier
from partlabel.training.capture import Captured, obstacle
from partlabel.training.dataset import OnDevice
from partlabel.training.forward import Forward
from partlabel.training.guards import LossGuard, SkipGuard
from partlabel.training.online import OnlinePrior
from partlabel.training.optim import MovingAverage, Update, make_optimiser, pace, set_pace
from partlabel.training.order import Order
from partlabel.training.processes import Processes
from partlabel.training.rundata import Part
from partlabel.training.runfolder import RunFolder
from partlabel.training.saving import save
from partlabel.training.scoring import chosen_precision, precision_context
from partlabel.training.supply import Supply
from partlabel.training.teacher import Teacher
from partlabel.training.watcher import Watcher

_LISTEN = 10  # steps after which several processes ask whether to stop


class Evaluate(Protocol):
    """Scores models by name on the validation set."""

    def __call__(self, models: dict[str, Classifier]) -> dict[str, dict[str, Any]]:
        """For each model: map_c, map_o and more."""


class Stopped(Exception):  # noqa: N818  # it is no error: the run goes on another time
    """The run was asked to stop; a checkpoint is written."""


@dataclass(frozen=True)
class Material:
    """What a trainer works on and with."""

    part: Part
    supply: Supply
    order: Order
    model: Classifier
    """On the device."""
    loss: PartialLoss
    """On the device."""
    evaluate: Evaluate | None = None
    """None where there is no validation set."""
    online: OnlinePrior | None = None
    """Estimates the prior on the way, if it is to be."""
    teacher: Teacher | None = None
    """Tells the loss how probably unknown labels are present, if it wants to know."""


class Trainer:
    """Trains one model, from where its run is to the end."""

    def __init__(
        self,
        config: Config,
        material: Material,
        *,
        processes: Processes,
        folder: RunFolder,
        watcher: Watcher,
    ) -> None:
        self.config, self.processes, self.folder = config, processes, folder
        self.part, self.supply = material.part, material.supply
        self.model, self.loss, self.online = material.model, material.loss, material.online
        self.evaluate, self.teacher, self.watcher = material.evaluate, material.teacher, watcher
        self.order = material.order
        self.total = config.train.epochs * self.order.steps
        self.done = 0
        """Steps that are behind us."""
        self.optimiser = make_optimiser(
            self.model,
            self.loss,
            name=config.optim.name,
            lr=config.optim.lr,
            weight_decay=config.optim.weight_decay,
            head_lr_factor=config.optim.head_lr_factor,
        )
        optim = config.optim
        self.average = MovingAverage(self.model, decay=optim.ema_decay, warmup=optim.ema_warmup)
        precision = chosen_precision(config.train.precision, processes.device)
        self._context = precision_context(processes.device, precision)
        self.scaler = torch.amp.GradScaler(processes.device.type, enabled=precision == "fp16")
        self.forward = self._wrapped()
        by_lists = self._captured is not None
        self._update = Update(self.optimiser, self.scaler, by_lists=by_lists)
        self._loss_takes = inspect.signature(self.loss.forward).parameters
        self.losses = LossGuard(folder, self.part)
        self.skips = SkipGuard(folder, self.part, most=config.images.max_skipped)
        self.loss_sum = torch.zeros((), dtype=_sum_type(processes.device), device=processes.device)
        self.loss_count = 0
        self.best, self.best_step, self.reference_best = -math.inf, 0, -math.inf
        self._saved = time.monotonic()
        self.ended = False
        """No better for long enough."""

    def _wrapped(self) -> nn.Module:
        forward: nn.Module = Forward(self.model, channels_last=self.config.train.channels_last)
        on_gpu, alone = self.processes.device.type == "cuda", self.processes.world == 1
        self._ddp: nn.parallel.DistributedDataParallel | None = None
        if not alone:
            here = [self.processes.device.index] if on_gpu else None
            forward = self._ddp = nn.parallel.DistributedDataParallel(forward, device_ids=here)
        # As CUDA graphs where that is possible: launching kernel after kernel takes longer than
        # the GPU takes for them, all the more while workers keep the cores busy.
        recorded = self.config.train.capture and not obstacle(self.processes)
        # A compiler's own not where gradients add up: those of one part would lie where the next
        # part writes.
        whole = self.config.train.accumulate == 1
        self._graphs = self.config.train.compile and on_gpu and alone and whole and not recorded
        if self.config.train.compile:
            mode = "reduce-overhead" if self._graphs else "default"
            forward = torch.compile(forward, mode=mode)  # type: ignore[assignment]
        self._captured: Captured | None = None
        if recorded:
            forward = self._captured = Captured(forward, parts=self.config.train.accumulate)
        return forward

    def run(self) -> None:
        """Train to the end; raises :class:`Stopped` where it was asked to stop before."""
        batches = self.supply.steps(self.order, self.done, self.total)
        self.forward.train()
        self.loss.train()
        while self.done < self.total and not self.ended:
            step = self.done
            self._set_pace(step)
            images = self._step(step, batches)
            self.done += 1
            self.loss_count += 1
            self._after(step, images)
        self.losses.check(wait=True)

    def _set_pace(self, step: int) -> None:
        optim = self.config.optim
        now = pace(
            step,
            self.total,
            schedule=optim.schedule,
            warmup=optim.warmup,
            cycle_momentum=optim.cycle_momentum,
        )
        set_pace(self.optimiser, now)

    def _step(self, step: int, batches: Iterator[OnDevice]) -> int:
        """One step of the optimiser, in parts; gives the number of images."""
        # Dropout and the like: keyed by step, so that there is no state to keep.
        key = mix(np.array([step * 65536 + self.processes.rank], np.uint64))
        key += seed_key(self.config.train.seed, "step")
        self.processes.seed(int(key[0] >> np.uint64(1)))
        if self._captured is None:
            self.optimiser.zero_grad(set_to_none=True)
        else:
            self._captured.begin()
            self.loss.zero_grad(set_to_none=True)
        parts, images = self.config.train.accumulate, 0
        # DDP takes the mean over processes; "sum" means the sum over all images.
        scale = self.processes.world if self.loss.reduction == "sum" else 1 / parts
        for number in range(parts):
            batch = next(batches)
            images += len(batch.rows)
            self.skips.note(batch)
            with self._unsynchronised(last=number == parts - 1):
                loss, whole = self._loss_of(batch)
                self.scaler.scale(whole * scale).backward()  # type: ignore[no-untyped-call]
            self.loss_sum += loss.detach() * (scale / self.processes.world)
            self.losses.watch(batch, step, whole.detach())
        for parameter in self.loss.parameters():  # DDP knows the model's alone
            if parameter.grad is not None and self.processes.world > 1:
                self.processes.add(parameter.grad).div_(self.processes.world)
        if self.config.optim.clip_grad is not None:
            self.scaler.unscale_(self.optimiser)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip_grad)
        self._update()
        self.average.update(step)
        return images

    def _loss_of(self, batch: OnDevice) -> tuple[Tensor, Tensor]:
        """The loss, and the same with that of the auxiliary head."""
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with self._context():
            logits, auxiliary = self.forward(batch.images)
        states = batch.states
        more: dict[str, Any] = {"epoch": batch.plan.epoch, "index": batch.rows}
        if self.teacher is not None:
            states, told = self.teacher.view(batch)
            more |= told
        wanted = {name: value for name, value in more.items() if name in self._loss_takes}
        loss: Tensor = self.loss(logits, states, **wanted)
        if self.online is None or auxiliary is None:
            return loss, loss
        return loss, loss + self.online.loss(auxiliary.float(), batch.states)

    def _unsynchronised(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last or self._ddp is None else self._ddp.no_sync()

    def _after(self, step: int, images: int) -> None:
        """What comes after a step; all processes decide alike."""
        settings = self.config.train
        beat = self.done % settings.log_steps == 0 or self.done == self.total
        mean = self._log(step) if beat else None
        self.watcher.step(self.done, self.total, images=images, loss=mean)
        every = settings.checkpoint_steps
        wanted = every is not None and self.done % every == 0
        if self.done % self.order.steps == 0:
            self._end_epoch(step // self.order.steps)
            wanted = True
        stop = False
        if beat or self.processes.world == 1 or self.done % _LISTEN == 0:
            late = time.monotonic() - self._saved > 60 * settings.checkpoint_minutes
            late, stop = self.processes.from_main((late, self.watcher.stopping()))
            wanted = wanted or late or stop
        if beat or step == 0:
            self.skips.check(self.processes, seen=self.done * self.order.batch_size)
        if wanted:
            self.losses.check(wait=True)
            save(self)
            self._saved = time.monotonic()
        if stop:
            raise Stopped

    def _log(self, step: int) -> float:
        """Log the mean loss since the last time."""
        total = float(self.processes.add(self.loss_sum.clone()))  # as if of one process
        mean = total / max(self.loss_count, 1)
        self.loss_sum.zero_()
        self.loss_count = 0
        if self.processes.main:
            lr = self.optimiser.param_groups[0]["lr"]
            values = {"epoch": step // self.order.steps, "loss": mean, "lr": lr}
            self.folder.log("train", self.done, values)
        return mean

    def _end_epoch(self, epoch: int) -> None:
        self.losses.check(wait=True)
        self.loss.end_epoch()
        if self.online is not None:
            self.online.end_epoch(self.loss, self.folder, self.processes)
        if self.teacher is not None and self.done < self.total:
            self.processes.copy_from_main(self.average.tensors)
            self.teacher.end_epoch(epoch + 1, self.average.model)
        last = self.done == self.total
        if self.evaluate is None or not (last or (epoch + 1) % self.config.eval.every == 0):
            return
        # BatchNorm counts on each process by itself; the main one's numbers are the model's.
        self.processes.copy_from_main([*self.average.tensors, *self.model.buffers()])
        models = {"average": self.average.model}
        if not self.config.eval.ema_only:
            models["regular"] = self.model
        found = self.evaluate(models)
        self.forward.train()
        main = found["average"]
        best = max(numbers["map_c"] for numbers in found.values())
        self.reference_best = max(self.reference_best, best)
        if main["map_c"] > self.best:
            self.best, self.best_step = main["map_c"], self.done
        line = {"epoch": epoch, **main, "reference_best": self.reference_best}
        if "regular" in found:
            line["regular_map_c"] = found["regular"]["map_c"]
        if self.processes.main:
            self.folder.log("eval", self.done, line)
        means = f"mAP(C) {100 * main['map_c']:.2f}, mAP(O) {100 * main['map_o']:.2f}"
        self.watcher.say(f"epoch {epoch + 1}: {means}")
        patience = self.config.train.early_stop
        if patience is not None and self.done - self.best_step >= patience * self.order.steps:
            self.ended = True
            self.watcher.say(f"stopped early: no better for {patience} epochs")


def _sum_type(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # which Apple's has not
