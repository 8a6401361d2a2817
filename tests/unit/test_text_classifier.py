"""The sample text classifier without torch: its features, its weights and its archive."""

from __future__ import annotations

import importlib
import io
import json
import math
import shutil
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.module_utils.model_archive import read_archive

FILES = Path(__file__).parents[2] / "roles/torchserve/files"
sys.path[:0] = [str(FILES / "handler"), str(FILES / "text_classifier")]
build, corpus, features, handler = map(importlib.import_module, ("build", "corpus", "features", "handler"))

HELD_OUT = {
    "positive": (
        "I love how fast this is",
        "This is excellent, thank you",
        "The support team was wonderful",
        "Easy to use and very reliable",
        "A very good machine",
        "I am delighted, best purchase ever",
        "Nice design, I like it",
    ),
    "negative": (
        "I hate this, it is so slow",
        "It crashed again and I lost my work",
        "Terrible quality, very disappointed",
        "Nothing works, I want my money back",
        "It is broken and useless",
        "The service is down again",
        "Rude staff and late delivery",
    ),
    "neutral": (
        "The server runs on port 443",
        "The report is due on Monday",
        "The box contains two cables",
        "The list shows the name of each node",
        "The shop opens at nine in the morning",
        "There are four machines in the office",
        "Send the form to the address below",
    ),
}


@pytest.fixture(scope="module")
def trained():
    return build.naive_bayes(corpus.CORPUS)


def scores(trained, text):
    weights, bias = trained
    return [bias[label] + sum(weights[bucket][label] for bucket in features.buckets(text)) for label in range(3)]


def classify(trained, text):
    found = scores(trained, text)
    return features.LABELS[found.index(max(found))]


@pytest.mark.parametrize("label", features.LABELS)
def test_four_of_five_sentences_it_has_never_seen_are_labelled_right(trained, label):
    assert not set(HELD_OUT[label]) & {sentence.rstrip(".") for sentence in corpus.CORPUS[label]}
    right = [text for text in HELD_OUT[label] if classify(trained, text) == label]
    assert len(right) / len(HELD_OUT[label]) >= 0.8


@pytest.mark.parametrize("text", ["", "!?", "😀"])
def test_a_text_without_words_is_neutral(trained, text):
    assert features.buckets(text) == []
    assert classify(trained, text) == "neutral"


def test_features_ignore_case_order_and_repetition():
    assert features.buckets("Good, GOOD service!") == features.buckets("service good")


def test_features_are_the_same_in_every_process():
    """Python's own hash is salted; these buckets were computed once and written down."""
    assert features.buckets("ok") == [2654, 2760, 3039]


def test_weights_have_four_decimals(trained):
    weights, bias = trained
    values = [value for row in (*weights, bias) for value in row]
    assert len(values) == 3 * (features.BUCKETS + 1)
    assert all(math.isfinite(value) and round(value, 4) == value for value in values)


class _Module:
    """Stand-in for the TorchScript module: the same sums, on lists."""

    def __init__(self, trained):
        self.weights, self.bias = trained

    def __call__(self, flat, starts):
        ends = [*starts[1:], len(flat)]
        rows = [flat[start:end] for start, end in zip(starts, ends, strict=True)]
        sums = [[self.bias[label] + sum(self.weights[b][label] for b in row) for label in range(3)] for row in rows]
        best = [row.index(max(row)) for row in sums]
        return SimpleNamespace(argmax=lambda **_: SimpleNamespace(tolist=lambda: best))


def test_a_batch_is_labelled_text_by_text(trained):
    classifier = handler.TextClassifier()
    classifier.torch = SimpleNamespace(tensor=lambda values, **_: values, long=None)
    classifier.device, classifier.module = "cpu", _Module(trained)
    texts = ["I love how fast this is", "!!!", "I hate this, it is so slow", "The report is due on Monday"]
    assert classifier.predict(texts) == ["positive", "neutral", "negative", "neutral"]


def test_two_archives_of_the_same_model_are_the_same_bytes():
    assert build.archive(b"weights", "1.0") == build.archive(b"weights", "1.0")


def test_nothing_in_an_archive_depends_on_time_or_on_zlib():
    with zipfile.ZipFile(io.BytesIO(build.archive(b"weights", "1.0"))) as container:
        entries = container.infolist()
    assert {(entry.date_time, entry.compress_type) for entry in entries} == {((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED)}
    assert [entry.filename for entry in entries] == [
        "MAR-INF/MANIFEST.json",
        "features.py",
        "groundwork_handler.py",
        "handler.py",
        "model.pt",
    ]


def test_the_library_is_found_beside_the_builder_too(tmp_path, monkeypatch):
    expected = build.archive(b"weights", "1.0")
    for folder in ("handler", "text_classifier"):
        shutil.copytree(FILES / folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.archive(b"weights", "1.0") == expected


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run the command with stand-in weights and return its JSON line."""
    monkeypatch.setattr(build, "torchscript", lambda *_: b"stand-in weights")

    def command(*arguments):
        build.main(["--output", str(tmp_path), *arguments])
        return json.loads(capsys.readouterr().out)

    return command


def test_the_command_writes_an_archive_that_publishing_accepts(run, tmp_path):
    result = run("--version", "3f9c2d1")
    archive = read_archive(tmp_path / "text_classifier-3f9c2d1.mar")
    assert result == {
        "archive": str(tmp_path / "text_classifier-3f9c2d1.mar"),
        "sha256": archive.sha256,
        "weights_sha256": archive.weights_sha256,
        "changed": True,
    }
    assert (archive.name, archive.version) == ("text_classifier", "3f9c2d1")


def test_a_second_run_writes_nothing(run, tmp_path):
    run()
    before = (tmp_path / "text_classifier-1.0.mar").stat().st_mtime_ns
    assert run()["changed"] is False
    assert (tmp_path / "text_classifier-1.0.mar").stat().st_mtime_ns == before


def test_a_damaged_archive_is_replaced_and_nothing_else_is_left(run, tmp_path):
    (tmp_path / "text_classifier-1.0.mar").write_bytes(b"damaged")
    assert run()["changed"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["text_classifier-1.0.mar"]


def test_the_archive_is_readable_for_the_services_user(run, tmp_path):
    run()
    assert (tmp_path / "text_classifier-1.0.mar").stat().st_mode & 0o777 == 0o644
