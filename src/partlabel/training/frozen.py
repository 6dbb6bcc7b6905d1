"""What the backbone knows before it is trained: scores of classes by the features it begins with.

A model that was trained on labels knows them by heart; features that were there before know none.
So a label's score can be had as if the label were not known (partlabel.calibrate.discriminant), of
all labels and not only of the few that are held out. It takes passes without gradients alone.
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

    def features(self, images: Tensor) -> Tensor:
        """Features (B, F) of uint8 images (B, 3, S, S)."""
        found = self.model.normalise(images)
        if found.shape[-1] != self.size:
            found = interpolate(found, (self.size, self.size), mode="bilinear")
        with self._context():
            return self.model.forward_features(found).float()

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
        """Scores by the present labels of some images but those held out, each without itself.

        Args:
            batches: Of images with all their labels, held-out ones too.
            rows: Which images.
            held: The labels that are held out.
            processes: Each takes its share of the images; all get everything.
            seen_by: Hears of every batch.
        """
        sums = FeatureSums(self.width, len(held.classes), processes.device)
        for batch in batches(rows[processes.rank :: processes.world]):
            if seen_by is not None:
                seen_by.see(batch)
            if len(batch.there):
                sums.update(self.features(batch.images), shown_of(batch, held).rest > 0)
        for tensor in sums.tensors():
            processes.add(tensor)
        found = sums.discriminant()

        def logits(batch: OnDevice, shown: Tensor) -> list[Tensor]:
            return [found.scores(self.features(batch.images), shown > 0)]

        return Source(1, logits, sampled=True)
