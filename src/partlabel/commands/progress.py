"""How far a walk over images is: a bar with images per second and time left, or lines."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from partlabel import terminal

_SECONDS_BETWEEN_LINES = 10.0


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text(f"{rate:,.0f} images/s" if rate else "")


class ImageProgress:
    """Shows how many images are done.

    Args:
        total: Of all processes.
        processes: How many there are; one is watched, and the others are as fast.
        shown: False for all processes but one.
        what: What is done with them.
    """

    def __init__(
        self, total: int, *, processes: int = 1, shown: bool = True, what: str = "predicting"
    ) -> None:
        self.total, self.processes, self.shown, self.what = total, processes, shown, what
        self._done = 0
        self._bar: Progress | None = None
        self._began = self._said = time.monotonic()

    def __enter__(self) -> ImageProgress:
        counted = TextColumn("{task.completed:,.0f} of {task.total:,.0f} images")
        self._bar = terminal.progress_bar(counted, _Rate()) if self.shown else None
        if self._bar is not None:
            self._task = self._bar.add_task(self.what, total=self.total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, images: int) -> None:
        """So many more are done here."""
        self._done = min(self._done + images * self.processes, self.total)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        now = time.monotonic()
        if self._bar is not None or not self.shown or now - self._said < _SECONDS_BETWEEN_LINES:
            return
        self._said = now
        rate = self._done / (now - self._began)
        left = (self.total - self._done) / max(rate, 1e-9)
        text = f"{self._done:,} of {self.total:,} images, {rate:,.0f} images/s, {left:,.0f} s left"
        terminal.err.print(text, markup=False)
