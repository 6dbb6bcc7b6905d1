"""Whoever watches a run: a bar in a terminal, a test, a benchmark."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Sees how far a run is."""

    def step(self, done: int, total: int, *, images: int, loss: float | None) -> None:
        """After every step; ``images`` of this process, ``loss`` now and then."""

    def within(self, what: str, done: int, total: int) -> None:
        """How far something else is that takes its time."""

    def say(self, text: str) -> None:
        """Something to tell."""

    def stopping(self) -> bool:
        """Whether somebody asked to stop."""


class Silent:
    """Watches without a word, for those who train from Python."""

    def step(self, done: int, total: int, *, images: int, loss: float | None) -> None:
        """After every step."""

    def within(self, what: str, done: int, total: int) -> None:
        """How far something else is."""

    def say(self, text: str) -> None:
        """Something to tell."""

    def stopping(self) -> bool:
        """Nobody asked to stop."""
        return False
