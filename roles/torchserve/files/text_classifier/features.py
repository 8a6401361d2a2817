"""From a text to the buckets of the sample classifier: the same code when it is built and when it serves."""

from __future__ import annotations

import re
import zlib

BUCKETS = 4096
LABELS = ("neutral", "positive", "negative")
WORD = re.compile(r"[^\W_]+")


def buckets(text: str) -> list[int]:
    """Return the sorted buckets of a text's words and letter trigrams, each once; empty for a text with no words.

    CRC-32 is the hash because it is the same in every process, which Python's own is not.
    """
    words = WORD.findall(text.lower())
    marked = [f"<{word}>" for word in words]
    trigrams = [word[start : start + 3] for word in marked for start in range(len(word) - 2)]
    return sorted({zlib.crc32(feature.encode()) % BUCKETS for feature in marked + trigrams})
