"""Train CompressedAD, a model that learns in context, in batches that each hold one compression depth.

    cd examples/compressed_ad
    python train.py config/algorithm/ppo_base.yaml config/env/darkroom.yaml config/model/ad_compressed_dr.yaml

The script records how an algorithm learns to find goals in a dark room, shows which batches `BucketSampler` makes of
these histories, trains a model for each seed, and prints the returns of the models on goals they were never trained on.
The three files take a few minutes; `--steps 200 --seeds 0` takes less. `config/` is a link to the files that come with
brim. `brim train distill` is the same training with a progress bar, a plot and more options.
"""

import argparse
from pathlib import Path

from torch.utils.data import DataLoader

from brim import BucketSampler, DistillConfig, collate_compressed_batch, train_distill
from brim.envs.darkroom import Histories, write_histories
from brim.train import StepReport
from brim.train.distill import HistoryDataset, load_config


def main() -> None:
    options = parse_options()
    config = load_config(options.config)
    changes = {name: getattr(options, name) for name in ("steps", "seeds") if getattr(options, name) is not None}
    config = config.with_training(**changes)
    if not options.resume:
        print("recording histories")
        options.output.mkdir(parents=True, exist_ok=True)
        write_histories(options.output / "histories.h5", config.histories)
    show_batches(config, options.output / "histories.h5")
    result = train_distill(config, output=options.output, resume=options.resume, on_step=show_step)
    for seed in result.seeds:
        print(f"seed {seed.seed}: return {seed.curve[0]:.2f} in the first episode, {seed.curve[-1]:.2f} in the last")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train CompressedAD on learning histories.")
    parser.add_argument("config", nargs="*", help="YAML files; later ones win")
    parser.add_argument("-o", "--output", type=Path, default=Path("checkpoints/distill"), help="output directory")
    parser.add_argument("--steps", type=int, help="optimizer steps for each seed [default: as in the files]")
    parser.add_argument("--seeds", type=int, nargs="+", help="train one model for each [default: as in the files]")
    parser.add_argument("--resume", action="store_true", help="continue the run in the output directory")
    return parser.parse_args()


def show_batches(config: DistillConfig, path: Path) -> None:
    """Print the shapes of one batch for each compression depth, and check that no batch mixes depths."""
    histories = Histories(path)
    train_dataset = HistoryDataset(histories, config.data, seed=config.training.seeds[0])
    train_sampler = BucketSampler(train_dataset, batch_size=32, shuffle=True)
    for depth, rows in train_sampler.buckets.items():
        print(f"bucket {depth}: {len(rows)} samples")
    shown: set[int] = set()
    for batch in DataLoader(train_dataset, batch_sampler=train_sampler, collate_fn=collate_compressed_batch):
        depth = batch["num_compression_stages"]
        assert depth == len(batch["compression_stages"])
        if depth in shown:
            continue
        shown.add(depth)
        print(f"Batch compression depth: {batch['num_compression_stages']}")
        for number, stage in enumerate(batch["compression_stages"]):
            print(f"Stage {number} shape: {tuple(stage['states'].shape)}")
        if shown == train_sampler.buckets.keys():
            break
    histories.close()


def show_step(report: StepReport) -> None:
    if report.step == 1 or report.step % 100 == 0:
        print(f"step {report.step}/{report.steps}: loss {report.loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
