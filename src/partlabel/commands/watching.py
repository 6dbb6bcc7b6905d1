"""How far a training is: a bar with images per second and time left, or a line now and then."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

from rich.progress import Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from partlabel import terminal

_SECONDS_BETWEEN_LINES = 10.0


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate, loss = task.fields["rate"], task.fields["loss"]
        text = f"{rate:,.0f} images/s" if rate else ""
        return Text(text + (f"  loss {loss:.4g}" if loss is not None else ""))


class TrainingProgress:
    """Shows a training, and listens for the wish to stop it.

    Ctrl-C and SIGTERM let the step end and a checkpoint be written; a second one stops at once.

    Args:
        shown: False for all processes but one.
        processes: How many train together, for the rate.
    """

    def __init__(self, *, shown: bool = True, processes: int = 1) -> None:
        self.shown, self.processes = shown, processes
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._inner: TaskID | None = None
        self._began = self._said = time.monotonic()
        self._first: int | None = None
        self._last = 0
        self._images = 0
        self._loss: float | None = None
        self._stop = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> TrainingProgress:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._asked)
        counted = TextColumn("{task.completed:,.0f} of {task.total:,.0f}")
        self._bar = terminal.progress_bar(counted, _Rate()) if self.shown else None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._bar is not None:
            self._bar.stop()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        self.say("stopping after this step, with a checkpoint; once more stops at once")

    def stopping(self) -> bool:
        """Whether somebody asked to stop."""
        return self._stop

    def step(self, done: int, total: int, *, images: int, loss: float | None) -> None:
        """After every step."""
        if not self.shown:
            return
        if self._first is None or done < self._last:  # a run, or the next stage of it, begins
            self._begin(done, total)
            images = 0  # the clock starts after the first step, which is slower than the rest
        self._last = done
        self._images += images * self.processes
        self._loss = loss if loss is not None else self._loss
        seconds = time.monotonic() - self._began
        rate = self._images / seconds if seconds > 0 else 0.0
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, rate=rate, loss=self._loss)
            return
        if time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES or done == total:
            self._said = time.monotonic()
            steps = done - (self._first or 0)
            left = seconds * (total - done) / max(steps, 1)
            text = f"step {done:,} of {total:,}, {rate:,.0f} images/s, {left:,.0f} s left"
            tail = f", loss {self._loss:.4g}" if self._loss is not None else ""
            terminal.err.print(text + tail, markup=False)

    def within(self, what: str, done: int, total: int) -> None:
        """How far something else is: a bar below, which goes when it is done."""
        if not self.shown:
            return
        if self._bar is not None:
            if self._inner is None:
                self._inner = self._bar.add_task(what, total=total, rate=0.0, loss=None)
            self._bar.update(self._inner, description=what, completed=done, total=total)
            if done >= total:
                self._bar.remove_task(self._inner)
                self._inner = None
        elif time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            terminal.err.print(f"{what}: {done:,} of {total:,} images", markup=False)

    def _begin(self, done: int, total: int) -> None:
        self._first, self._images, self._loss = done, 0, None
        self._began = self._said = time.monotonic()
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task("training", total=total, rate=0.0, loss=None)

    def say(self, text: str) -> None:
        """Print a line, above the bar."""
        if self.shown:
            terminal.err.print(Text(text))
