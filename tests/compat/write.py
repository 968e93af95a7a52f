"""Write the files of one version of brim that later versions are tested with, and what that version says about them.

Run it once for a version, under that version, into a new directory; the directory is kept in the repository:

    PYTHONPATH=<that version's src>:tests python -m compat.write tests/compat/0.5.0

Training runs are left as a kill leaves them: some checkpoints, and a log that is longer than the last of them. Their
expected end is that of the run before it was cut. The version resumes each of them once, and must reach the same end.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

import brim
from compat import facts

LEFT = {"sft": (3,), "lora": (5,), "online": (6, 15), "distill": (5,)}
"""The checkpoints of each run that stay."""

DISTILL = """\
algorithm: {name: q_learning, episodes: 10, keep_every: 2, repeats: 2}
env: {name: darkroom, size: 4, horizon: 5}
data: {window: 12, depth: 3, samples: 200}
model: {width: 8, heads: 2, encoder_layers: 1, decoder_layers: 1, latents: 3}
training: {seeds: [0], steps: 9, token_budget: 300, save_every: 5, log_every: 1}
evaluation: {episodes: 3, lanes: 2}
"""


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    os.chdir(target)
    write_inputs()
    for line in facts.COMMANDS:
        run(line)
    write_interrupted_build()
    write_streams()
    found = {name: fact() for name, fact in facts.FACTS.items()}
    expected = {"version": brim.__version__, "facts": found, "runs": {}}
    with brim.PuzzleServer() as server:
        for name in facts.RUNS:
            expected["runs"][name] = write_run(name, server.port)
    for lock in Path().rglob(".lock"):
        lock.unlink()
    Path("expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


def run(line: str) -> None:
    status, _ = facts.call(line)
    assert status == 0 or (status == 1 and "train distill" in line), line  # 1: so small a model does not learn


def write_inputs() -> None:
    """Rows of text, a model of a few thousand weights, and nested samples."""
    run("sample-data -n 1000 -o all.jsonl")
    rows = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    Path("all.jsonl").unlink()
    short = [{**row, "task": f"task {number % 3}"} for number, row in enumerate(rows) if len(json.dumps(row)) < 300]
    for name, part in {"train.jsonl": short[:30], "eval.jsonl": short[30:33], "few.jsonl": short[33:37]}.items():
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in part))
    write_model()
    Path("distill.yaml").write_text(DISTILL)
    random = np.random.default_rng(5)
    samples = [history(random, number) for number in range(8)]
    for name in facts.NESTED:
        brim.write_nested(name, samples)


def write_model() -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=259,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=256,
        bos_token_id=257,
        eos_token_id=258,
    )
    transformers.LlamaForCausalLM(shape).save_pretrained("model")
    Path("model", "brim_tokenizer.json").write_text('{"tokenizer": "byte"}\n')


def history(random: np.random.Generator, number: int) -> dict:
    """A nested sample with as many compression stages as its number says."""

    def stretch() -> dict:
        steps = int(random.integers(2, 9))
        states, rewards = random.integers(0, 9, (steps, 2)), random.integers(0, 2, steps)
        return {"states": states.astype(np.int16), "rewards": rewards.astype(np.float32)}

    depth = number % 2
    stages = [stretch() for _ in range(depth)]
    return {"id": f"h{number}", "compression_depth": depth, "compression_stages": stages, "context": stretch()}


def write_interrupted_build() -> None:
    """The journal of a `lengths build` that was killed while it tokenised."""
    killed = "import os, brim.data.measure as m, brim.data.journal as j; append = j.Journal.append\n"
    killed += "j.Journal.append = lambda self, block: (append(self, block), os.kill(os.getpid(), 9))\n"
    killed += "from brim.cli import main; main()"
    line = "lengths build -d train.jsonl -t byte --workers 1 -q -o interrupted.brim"
    done = subprocess.run([sys.executable, "-c", killed, *line.split()], check=False)
    assert done.returncode == -signal.SIGKILL
    assert Path(".interrupted.brim.journal").stat().st_size > 0


def write_streams() -> None:
    """A replay buffer in both formats, a window on it, a curriculum, the state of a stream, a capacity, a position."""
    buffer = brim.ReplayBuffer(max_size=40, seed=3)
    for sample in brim.MockGymStream("byte", num_episodes=12, steps_per_episode=4, seed=1):
        buffer.add(sample)
    draw = buffer.sample(8)
    buffer.update_priorities(draw.keys, np.linspace(0.5, 3, 8))
    rolling = brim.RollingBatchPlanWindow(buffer, tokenizer_hash="byte", **facts.WINDOW)
    rolling.build_next_window()
    next(rolling.iter_current())
    rolling.save("window.brim")
    buffer.save("buffer.brim")
    buffer.save("buffer.json")
    curriculum = brim.Curriculum(**facts.CURRICULUM)
    curriculum.record_batch([True] * 6)
    Path("curriculum.json").write_text(json.dumps(curriculum.state_dict()) + "\n")
    stream = facts.stream()
    for _ in range(20):
        next(stream)
    Path("stream.json").write_text(json.dumps(stream.state_dict()) + "\n")
    stream.close()
    write_capacity()
    fingerprint = brim.BatchPlan.load("plans/budget").fingerprint
    brim.CheckpointPosition(epoch=1, microbatch_idx=3, global_step=9, fingerprint=fingerprint).save("position.json")


def write_capacity() -> None:
    from brim.analyze.capacity import Search, Trial

    def attempt(size: int) -> Trial:
        if size > 3000:
            return Trial(size=size, why="out of memory")
        return Trial(size=size, seconds=0.1 + size / 1000, peak=size * 100)

    measured = {"length": 128, "layout": "padded"}
    brim.find_capacity(attempt, Search(unit="tokens", start=256), measured=measured).save("capacity.json")


def write_run(name: str, port: int) -> dict:
    """Run to the end, cut the run back to some checkpoints, and resume a copy of it. Returns how it ended."""
    run(facts.RUNS[name].replace("PORT", str(port)))
    end = facts.of_run(name)
    output = Path("distill/seed-0" if name == "distill" else name)
    leave = {f"checkpoint-{step:08d}" for step in LEFT[name]}
    for path in [*output.glob("checkpoint-*"), output / "model"]:
        if path.name not in leave and path.exists():
            shutil.rmtree(path)
    for path in ("distill/results.json", "distill/seed-0/in_context.json"):
        Path(path).unlink(missing_ok=True)
    for step in LEFT[name]:
        resumed = resumed_end(name, f"checkpoint-{step:08d}", port)
        assert resumed["samples"] == end["samples"], name
        assert resumed["losses"] == end["losses"], name
        assert resumed["weights"] == end["weights"], name
    return end


def resumed_end(name: str, checkpoint: str, port: int) -> dict:
    kept = Path(f"{name}.kept")
    shutil.copytree(name, kept)
    try:
        run(facts.RESUMES[name].replace("CHECKPOINT", checkpoint).replace("PORT", str(port)))
        return facts.of_run(name)
    finally:
        shutil.rmtree(name)
        kept.rename(name)


if __name__ == "__main__":
    main()
