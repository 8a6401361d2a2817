"""TorchServe's entry point of the sample text classifier."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from features import LABELS, buckets
from groundwork_handler import TextHandler


class TextClassifier(TextHandler):
    """Labels a text as neutral, positive or negative."""

    def load(self, model_dir: Path, device: str) -> None:
        """Read the TorchScript module."""
        self.device = device
        self.module = self.torch.jit.load(str(model_dir / "model.pt"), map_location=device).eval()

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Return one label a text."""
        rows = [buckets(text) for text in texts]
        flat = self.torch.tensor([bucket for row in rows for bucket in row], dtype=self.torch.long, device=self.device)
        starts = list(accumulate((len(row) for row in rows[:-1]), initial=0))
        scores = self.module(flat, self.torch.tensor(starts, device=self.device))
        return [LABELS[best] for best in scores.argmax(dim=1).tolist()]
