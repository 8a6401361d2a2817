#!/usr/bin/env python3
"""Build the model archive of the sample text classifier: with one version of torch, the same bytes on every machine.

The model is a multinomial naive Bayes over hashed features, counted from the sentences in corpus.py: no training loop,
no random numbers, no download. It is kept as TorchScript, like any served model.
torch-model-archiver is not used because it stamps the time into its archives: their checksums could not be compared.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import io
import json
import math
import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from corpus import CORPUS
from features import BUCKETS, LABELS, buckets

NAME = "text_classifier"
HERE = Path(__file__).resolve().parent
LIBRARY = "groundwork_handler.py"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment a zip can name

FORWARD = """
def forward(self, buckets: Tensor, starts: Tensor) -> Tensor:
    return torch.embedding_bag(self.weight, buckets, starts)[0] + self.bias
"""


def naive_bayes(corpus: Mapping[str, Sequence[str]]) -> tuple[list[list[float]], list[float]]:
    """Return weights[bucket][label] and bias[label] so that a text's score is the sum over its buckets plus the bias.

    Four decimals are far more than the corpus supports, and hide what differs in the last bits between C libraries.
    """
    counts = {label: Counter(bucket for text in corpus[label] for bucket in buckets(text)) for label in LABELS}
    sentences = sum(len(corpus[label]) for label in LABELS)
    bias = [round(math.log(len(corpus[label]) / sentences), 4) for label in LABELS]
    weights = []
    for bucket in range(BUCKETS):
        logs = [math.log((counts[label][bucket] + 1) / (counts[label].total() + BUCKETS)) for label in LABELS]
        # Only differences between the labels decide; centred, a bucket that tells nothing weighs nothing.
        weights.append([round(log - sum(logs) / len(logs), 4) for log in logs])
    return weights, bias


def torchscript(weights: list[list[float]], bias: list[float]) -> bytes:
    """Return the serialized module: an embedding bag that sums, plus the bias.

    The code is given as text because torch.jit.script on a class writes the paths of its source files into the
    archive, and the module is saved to a buffer because torch.jit.save names the archive's root after the file.
    """
    torch = importlib.import_module("torch")
    holder = torch.nn.Module()
    holder.register_buffer("weight", torch.tensor(weights, dtype=torch.float32))
    holder.register_buffer("bias", torch.tensor(bias, dtype=torch.float32))
    module = torch.jit.script(holder.eval())
    module.define(FORWARD)
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


def archive(model: bytes, version: str) -> bytes:
    """Return the model archive: entries sorted, stamped with one time, stored, because zlib's output varies."""
    manifest = {
        "createdOn": "01/01/1980 00:00:00",
        "runtime": "python",
        "model": {"modelName": NAME, "modelVersion": version, "serializedFile": "model.pt", "handler": "handler.py"},
        "archiverVersion": "0.12.0",
    }
    library = HERE / LIBRARY  # on a host; the repository has it in a folder of its own
    entries = {
        "MAR-INF/MANIFEST.json": json.dumps(manifest, indent=2).encode(),
        "features.py": (HERE / "features.py").read_bytes(),
        LIBRARY: (library if library.is_file() else HERE.parent / "handler" / LIBRARY).read_bytes(),
        "handler.py": (HERE / "handler.py").read_bytes(),
        "model.pt": model,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as container:
        for name, content in sorted(entries.items()):
            container.writestr(zipfile.ZipInfo(name, EPOCH), content)
    return buffer.getvalue()


def write(path: Path, content: bytes) -> bool:
    """Put the content at the path in one step; say whether it was not there already."""
    if path.is_file() and path.read_bytes() == content:
        return False
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
        stream.write(content)
    temporary = Path(stream.name)
    temporary.chmod(0o644)  # TorchServe reads it as another user, whatever the umask here
    temporary.replace(path)
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the archive and print what came of it as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="where the archive goes; must exist")
    parser.add_argument("--version", default="1.0", help="model version in the archive and its name (default: 1.0)")
    options = parser.parse_args(arguments)
    model = torchscript(*naive_bayes(CORPUS))
    content = archive(model, options.version)
    path = options.output / f"{NAME}-{options.version}.mar"
    result = {
        "archive": str(path),
        "sha256": hashlib.sha256(content).hexdigest(),
        "weights_sha256": hashlib.sha256(model).hexdigest(),
        "changed": write(path, content),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
