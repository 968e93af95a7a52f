"""Streams: samples one after the other, each with its origin, from a position that can be saved and resumed.

A stream has one position. `for` and `async for` continue from it, a state of a few numbers restores it in another
process, and samples that are filtered out are counted.
"""

import asyncio
import json
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

from brim import AsyncOfflineDatasetStream, OfflineDatasetStream, StreamMetrics, StreamSample
from brim.data import check_answer, sample_rows

with tempfile.TemporaryDirectory() as directory:
    # 1. A data set as a gym could have written it: tasks and answers, some of them wrong, with the outcome in "meta".
    path = Path(directory, "attempts.jsonl")
    with open(path, "w") as file:
        for number, row in enumerate(sample_rows(400)):
            if number % 4 == 0:
                row["response"] = "I do not know."
            success = check_answer(row)
            meta = {
                "reward": float(success),
                "success": success,
                "difficulty": "hard" if len(row["response"]) > 300 else "easy",
            }
            file.write(json.dumps({**row, "meta": meta}) + "\n")

    # 2. In the order of the file. Text is tokenised while reading; only the response is trained on.
    stream = OfflineDatasetStream(path, "byte")
    first = stream.peek()[0]
    print(f"{first.sample_id}: {first.length} tokens from {first.source} data {first.dataset_id!r}")
    print(f"  reward {first.reward}, difficulty {first.difficulty}, status {first.episode_status}")
    samples = list(stream)
    metrics: StreamMetrics = stream.metrics
    print(f"{metrics.samples} samples, {metrics.tokens} tokens, mean length {metrics.mean_length:.1f}")
    print(
        f"success rate {metrics.success_rate:.0%}, mean reward {metrics.mean_reward:.2f}, mean difficulty "
        f"{metrics.mean_difficulty:.2f}"
    )

    # 3. Shuffled by a buffer: every epoch has its own order and every sample once. At most 64 rows are in memory.
    shuffled = OfflineDatasetStream(path, "byte", shuffle=True, buffer_size=64, seed=7, epochs=2)
    ids = [sample.sample_id for sample in shuffled]
    assert sorted(ids[:400]) == sorted(ids[400:]) == sorted(sample.sample_id for sample in samples)
    assert ids[:400] != ids[400:]
    shuffled.reset()
    assert [sample.sample_id for sample in shuffled] == ids
    print("\ntwo epochs in two orders, every sample once in each; after reset() the same again")

    # 4. Transform and filter. Samples that are left out are counted by reason.
    def marked(sample: StreamSample) -> StreamSample:
        return replace(sample, priority=2.0 if sample.difficulty == 0.7 else 1.0)

    def solved(sample: StreamSample) -> bool:
        return bool(sample.success)

    chosen = OfflineDatasetStream(path, "byte", map=marked, filter=solved, max_length=900)
    kept = Counter(sample.priority for sample in chosen)
    assert chosen.count_samples() == chosen.metrics.samples == sum(kept.values())
    assert chosen.metrics.samples + chosen.metrics.num_filtered == 400
    print(f"kept {chosen.metrics.samples}, of which {kept[2.0]} are hard; left out: {chosen.metrics.filtered}")
    lengths = chosen.get_length_distribution()
    print(
        f"what is kept has {lengths.shortest} to {lengths.longest} tokens, half of it at most {lengths.percentile(50)}"
    )

    # 5. Samples are immutable. A replayed sample is a marked copy.
    again = first.with_replay()
    assert (first.is_replay, first.replay_count) == (False, 0)
    print(f"\nreplayed: source {again.source}, replay_count {again.replay_count}; the original is unchanged")
    assert StreamSample.from_dict(json.loads(json.dumps(again.to_dict()))) == again

    # 6. The same with `async for`: a thread reads and tokenises one block ahead while other tasks run.
    async def collect() -> list[StreamSample]:
        async with AsyncOfflineDatasetStream(path, "byte", shuffle=True, buffer_size=64, seed=7, epochs=2) as stream:
            return [sample async for sample in stream]

    everything = asyncio.run(collect())
    assert [sample.sample_id for sample in everything] == ids
    print("`for` and `async for` give the same samples in the same order")

    # 7. Stop anywhere and resume, in another process and with the other kind of loop. A state holds no samples.
    shuffled.reset()
    done = list(islice(shuffled, 123))
    state = json.dumps(shuffled.state_dict())

    async def resume() -> list[StreamSample]:
        async with AsyncOfflineDatasetStream(path, "byte", shuffle=True, buffer_size=64, seed=7, epochs=2) as stream:
            stream.load_state_dict(json.loads(state))
            return [sample async for sample in stream]

    rest = asyncio.run(resume())
    assert done + rest == everything
    print(f"stopped after {len(done)} samples, resumed with the other {len(rest)}: nothing repeated, nothing lost")
    print(f"where it stopped: {json.loads(state)['position']}")
