"""What the backbone knows before it is trained: scores of classes by the features it begins with.

A model that was trained on labels knows them by heart; features that were there before know none.
So a label's score can be had as if the label were not known (partlabel.calibrate.discriminant), of
all labels and not only of the few that are held out. It takes passes without gradients alone, one
where the features of all images fit into memory.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from partlabel.calibrate import FeatureSums
from partlabel.config import Config
from partlabel.model import Classifier, build_model, trained_size
from partlabel.store import LabelStore
from partlabel.tables import Rows
from partlabel.training.asking import Source, shown_of
from partlabel.training.dataset import OnDevice
from partlabel.training.processes import Processes
from partlabel.training.scoring import Batches, Seen, chosen_precision, precision_context

_ROOM = 1 << 30
"""Bytes of features that a process keeps."""


class Frozen:
    """A backbone as a run begins with it, in evaluation mode.

    Args:
        config: Of the run. Its weights must not be random.
        device: Where it is.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        settings = config.model
        # What it was trained on was no smaller; small images are enlarged for it.
        self.size = max(trained_size(settings.backbone), config.images.size)
        model = build_model(
            settings.backbone, 1, weights=settings.weights, head="linear", image_size=self.size
        )
        form = torch.channels_last if config.train.channels_last else torch.contiguous_format
        self.model: Classifier = model.to(device).to(memory_format=form).eval()  # type: ignore[call-overload]
        self.width = model.width
        self._context = precision_context(device, chosen_precision(config.train.precision, device))
        self._kept: dict[int, Tensor] = {}

    def features(self, images: Tensor) -> Tensor:
        """Features (B, F) of uint8 images (B, 3, S, S)."""
        found = self.model.normalise(images)
        # No more pixels at a time than a batch of the run has.
        at_once = max(1, len(found) * images.shape[-1] ** 2 // self.size**2)
        with self._context():
            parts = [self._features(part).float() for part in torch.split(found, at_once)]
        return torch.cat(parts).nan_to_num(0.0, 0.0, 0.0)  # one that overflows is not worth a run

    def _features(self, images: Tensor) -> Tensor:
        if images.shape[-1] != self.size:
            images = interpolate(images, (self.size, self.size), mode="bilinear")
        found: Tensor = self.model.forward_features(images)
        return found

    @torch.inference_mode()
    def learned(
        self,
        batches: Batches,
        rows: Rows,
        held: LabelStore,
        *,
        processes: Processes,
        seen_by: Seen | None = None,
    ) -> Source:
        """Scores by the labels of some images but those held out, each without itself.

        Args:
            batches: Of images with all their labels, held-out ones too.
            rows: Which images.
            held: The labels that are held out.
            processes: Each takes its share of the images; all get everything.
            seen_by: Hears of every batch.
        """
        sums = FeatureSums(self.width, len(held.classes), processes.device)
        own = rows[processes.rank :: processes.world]
        keep = len(own) * self.width * 4 <= _ROOM
        for batch in batches(own):
            if seen_by is not None:
                seen_by.see(batch)
            if len(batch.there):
                features = self.features(batch.images)
                sums.update(features, shown_of(batch, held).rest)
                if keep:
                    self._kept.update(zip(batch.there.tolist(), features, strict=True))
        for tensor in sums.tensors():
            processes.add(tensor)
        found = sums.discriminant()

        def logits(batch: OnDevice, shown: Tensor) -> list[Tensor]:
            return [found.scores(self._again(batch), shown)]

        return Source(1, logits, sampled=True)

    def _again(self, batch: OnDevice) -> Tensor:
        """The features of a batch of images, from memory where they are there."""
        kept = [self._kept[row] for row in batch.there.tolist() if row in self._kept]
        return torch.stack(kept) if len(kept) == len(batch.there) else self.features(batch.images)
