"""Length caches: loading one, and building one with the GPT-2 tokenizer, beside chuk-lazarus and bare `tokenizers`.

Loading: every contender opens a file of its own form with the same string ids. brim's columnar form is mapped and its
checksums are verified. chuk-lazarus needs minutes for a million rows, so without --full it is measured on fewer. It is
kept on one core, on which it is faster than on two.

Building: the same texts for all. Bare `tokenizers` has them in memory and its tokenizer loaded and warm, and keeps
nothing; brim starts from the JSONL file, loads the tokenizer, starts its processes, and ends with a cache on disk. All
may use every core, except chuk-lazarus, which has no way to.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import Contender, Report, add_ratios, lognormal, race

from brim import LengthCache
from brim.data.measure import build_lengths
from brim.data.tokenizer.gpt2 import gpt2_backend

LOAD_SIZES = (100_000, 1_000_000)
SLOW = 100_000  # the largest cache for chuk-lazarus without --full
BLOCK = 1_000  # texts in one call of encode_batch
WORKERS = len(os.sched_getaffinity(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=LOAD_SIZES, help="rows of the caches to load")
    parser.add_argument("--megabytes", type=int, default=24, help="text to measure")
    parser.add_argument("--full", action="store_true", help="load the largest cache with chuk-lazarus too (minutes)")
    options = parser.parse_args()
    report = Report("lengths")
    with tempfile.TemporaryDirectory() as folder:
        race(list(loaders(report, Path(folder), 1_000, slow=True)), rounds=1)  # warm-up
        for n in options.sizes:
            rows = race(list(loaders(report, Path(folder), n, slow=n <= SLOW or options.full)), patience=12)
            add_ratios(rows, "brim columnar")
            report.table(
                f"Loading a length cache of {n:,} rows", rows, {"rows": ",", "ratio": ",.1f"}, subject="load", n=n
            )
        texts = make_texts(options.megabytes * 1_000_000)
        size = sum(len(text.encode()) for text in texts)
        race(list(builders(report, Path(folder), texts[:200])), rounds=1)  # warm-up
        rows = race(list(builders(report, Path(folder), texts)), rounds=5, patience=30)
        for row in rows:
            row.columns["MB/s"] = size / 1e6 / row.seconds
        add_ratios(rows, "brim build_lengths")
        title = f"Measuring {size / 1e6:.1f} MB of text in {len(texts):,} rows with GPT-2's tokenizer, {WORKERS} cores"
        report.table(
            title,
            rows,
            {"tokens": ",", "MB/s": ".2f", "ratio": ".2f"},
            subject="build",
            rows_of_text=len(texts),
            bytes=size,
        )
    print(f"written: {report.close()}")


def loaders(report: Report, folder: Path, n: int, *, slow: bool) -> Iterator[Contender]:
    lengths = lognormal(n).tolist()
    foreign = folder / "foreign.jsonl"
    with open(foreign, "w") as file:  # as chuk-lazarus writes it
        file.write(json.dumps({"tokenizer_hash": "bench", "version": 1}) + "\n")
        for row, length in enumerate(lengths):
            file.write(
                json.dumps({"sample_id": f"sample_{row:07d}", "tokenizer_hash": "bench", "length": length}) + "\n"
            )
    cache = LengthCache.load(foreign)
    columnar, jsonl = folder / "lengths.brim", folder / "lengths.jsonl"
    cache.save(columnar)
    cache.save(jsonl)

    def judge(cache: Any) -> dict[str, Any]:
        assert (len(cache), cache.get("sample_0000007")) == (n, lengths[7])
        return {"rows": len(cache)}

    yield Contender("brim columnar", lambda: LengthCache.load(columnar), judge)
    yield Contender("brim JSONL", lambda: LengthCache.load(jsonl), judge)
    yield Contender("brim, chuk-lazarus's JSONL", lambda: LengthCache.load(foreign), judge)
    module = report.peer("chuk_lazarus.data.batching", "chuk-lazarus")
    if module is not None and slow:
        yield Contender("chuk-lazarus LengthCache", lambda: on_one_core(module.LengthCache.load(foreign)), judge)


def on_one_core(work: Coroutine[Any, Any, Any]) -> Any:
    """chuk-lazarus hands every line from one thread to another, which takes more than twice as long when they are on
    different cores.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        return asyncio.run(work)
    finally:
        os.sched_setaffinity(0, cores)


def make_texts(size: int) -> list[str]:
    """Texts of words from GPT-2's vocabulary, frequent ones often, with some compounds, numbers and punctuation;
    lognormal lengths.
    """
    rng = np.random.default_rng(2)
    ids = sorted(gpt2_backend().get_vocab().items(), key=lambda pair: pair[1])
    words = [
        token[1:]
        for token, _ in ids
        if token[0] == "Ġ" and token[1:].isascii() and token[1:].isalpha() and len(token) > 2
    ]
    texts: list[str] = []
    while size > 0:
        count = int(np.clip(rng.lognormal(np.log(220), 1.0), 5, 1500))
        ranks = (len(words) * rng.random(count) ** 3).astype(int)  # the k-th word about k^(-2/3) often
        kinds = rng.random(count)
        text = " ".join(_word(words, rank, kind) for rank, kind in zip(ranks.tolist(), kinds.tolist(), strict=True))
        texts.append(text)
        size -= len(text)
    return texts


def _word(words: list[str], rank: int, kind: float) -> str:
    if kind < 0.03:
        return str(rank)
    if kind < 0.10:
        return words[rank] + words[int(kind * 1e5) % len(words)]
    return words[rank] + ("." if kind > 0.95 else "," if kind > 0.9 else "")


def builders(report: Report, folder: Path, texts: list[str]) -> Iterator[Contender]:
    source, output = folder / "texts.jsonl", folder / "built.brim"
    with open(source, "w") as file:
        for row, text in enumerate(texts):
            file.write(json.dumps({"id": f"sample_{row:07d}", "text": text}) + "\n")
    backend = gpt2_backend()
    blocks = [texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK)]

    def forget() -> None:
        output.unlink(missing_ok=True)  # a finished build is not done again

    def brim_built() -> Any:
        return build_lengths(source, output, "gpt2", workers=WORKERS).cache

    def total(lengths: Any) -> dict[str, Any]:
        return {"tokens": int(np.sum(lengths))}

    yield Contender("brim build_lengths", brim_built, lambda cache: total(cache.lengths), forget)
    for name in ("encode_batch", "encode_batch_fast"):
        encode = getattr(backend, name)
        yield Contender(
            f"bare tokenizers, {name}", lambda encode=encode: [len(e) for b in blocks for e in encode(b)], total
        )
    module = report.peer("chuk_lazarus.data.batching", "chuk-lazarus")
    if module is not None:

        async def chuk_built() -> Any:
            async with module.LengthCache.create(folder / "chuk.jsonl", "bench") as cache:
                for row, text in enumerate(texts):
                    await cache.add(f"sample_{row:07d}", len(backend.encode(text)))
            return cache

        yield Contender(
            "chuk-lazarus LengthCache",
            lambda: on_one_core(chuk_built()),
            lambda cache: total(list(cache.get_all().values())),
        )


if __name__ == "__main__":
    main()
