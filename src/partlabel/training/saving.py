"""A trainer into a checkpoint and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partlabel.errors import StoreError
from partlabel.model import description
from partlabel.training import checkpoint as checkpoints

if TYPE_CHECKING:
    from partlabel.training.loop import Trainer


def save(trainer: Trainer) -> None:
    """Write a checkpoint; called on all processes, written by the main one."""
    processes = trainer.processes
    own = checkpoints.module_tensors(trainer.loss)
    states = processes.gather(own) if trainer.loss.per_process else [own]
    online = None if trainer.online is None else trainer.online.state(processes)
    sums = processes.gather((float(trainer.loss_sum), trainer.loss_count))
    if not processes.main:
        return
    tensors = {
        "model": trainer.model.state_dict(),
        "average": trainer.average.model.state_dict(),
        "optimiser": checkpoints.optimiser_tensors(trainer.optimiser),
    }
    facts: dict[str, Any] = {
        "world": processes.world,
        "images": len(trainer.part.store),
        "batch_size": trainer.order.batch_size,
        "ended": trainer.ended,
        "loss": [],
        "scaler": trainer.scaler.state_dict(),
        "loss_sums": sums,
        "best": [trainer.best, trainer.best_step, trainer.reference_best],
        "skipped": list(trainer.skips.skipped.items()),
    }
    for number, (own_tensors, own_facts) in enumerate(states):
        tensors[f"loss-{number}"] = own_tensors
        facts["loss"].append(own_facts)
    if online is not None:
        tensors["online"] = online
    trainer.folder.flush_log()
    made = checkpoints.Checkpoint(
        trainer.done, trainer.part.store.classes, description(trainer.model), tensors, facts
    )
    settings = trainer.config.train
    best = trainer.best_step if settings.early_stop is not None else None
    checkpoints.save(trainer.folder.checkpoints, made, keep=settings.keep, protect=best)


def keep_best(trainer: Trainer) -> None:
    """Make the moving average that of the best evaluation; called on all processes."""
    path = checkpoints.at_step(trainer.folder.checkpoints, trainer.best_step)
    found = checkpoints.load(path, parts=("average",))
    trainer.average.model.load_state_dict(found.tensors["average"])
    save(trainer)


def resume(trainer: Trainer, found: checkpoints.Checkpoint) -> None:
    """Go on from a checkpoint, with the same number of processes or another."""
    processes, facts = trainer.processes, found.facts
    checkpoints.refuse_other(found, trainer.part.store.classes, description(trainer.model))
    now = {"images": len(trainer.part.store), "batch_size": trainer.order.batch_size}
    for key, value in now.items():
        if facts[key] != value:
            raise StoreError(
                f"{found.path}: was made with {key} {facts[key]:,}, now it is {value:,}; "
                "choose another --out, or --fresh to start anew"
            )
    trainer.model.load_state_dict(found.tensors["model"])
    trainer.average.model.load_state_dict(found.tensors["average"])
    checkpoints.load_optimiser(trainer.optimiser, found.tensors["optimiser"])
    if facts["scaler"]:
        trainer.scaler.load_state_dict(facts["scaler"])
    number = processes.rank if trainer.loss.per_process else 0
    if trainer.loss.per_process and facts["world"] != processes.world:
        raise StoreError(
            f"{found.path}: its loss keeps state in each of {facts['world']} processes; "
            f"resume with as many, not with {processes.world}"
        )
    checkpoints.load_module(trainer.loss, found.tensors[f"loss-{number}"], facts["loss"][number])
    if trainer.online is not None:
        trainer.online.resume(found.tensors["online"], processes)
    sums = facts["loss_sums"]
    if facts["world"] != processes.world:
        steps = sums[0][1]
        whole = sum(total for total, _ in sums)
        sums = [[whole, steps]] + [[0.0, steps]] * (processes.world - 1)
    total, trainer.loss_count = sums[processes.rank]
    trainer.loss_sum.fill_(total)
    trainer.done, trainer.ended = found.step, facts["ended"]
    trainer.best, trainer.best_step, trainer.reference_best = facts["best"]
    trainer.skips.skipped = {int(row): reason for row, reason in facts["skipped"]}
    if processes.main:
        trainer.folder.cut_log(found.step)
