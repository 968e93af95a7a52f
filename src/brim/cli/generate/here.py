"""Generate with a model of this machine, on one rank or on several under torchrun.

Every rank reads all prompts, because the random numbers of a response depend on how many equal prompts stand before its
own, and generates its share of the missing responses. The main rank opens the output's journal before and writes the
output after.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.cli.generate.progress import Tally
from brim.cli.generate.run import Asked, collect, finish, opened, opened_by_rank
from brim.core.extras import need
from brim.core.options import check_counts
from brim.generate.output.journal import ResponseJournal
from brim.generate.output.share import AllBut, share_of
from brim.generate.output.weights import weights_fingerprint
from brim.generate.reading import read_prompts
from brim.generate.rollouts import Ids, Response
from brim.train.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A model that was found, and its tokenizer. Its weights are not loaded yet."""

    config: Any
    """A `brim.train.config.ModelConfig` that names both."""
    tokenizer: Any
    bf16: bool
    threads: int | None

    @property
    def identity(self) -> dict[str, Any]:
        """The options that decide the responses, by their names."""
        return {
            "model": os.path.normpath(self.config.model),
            "weights": weights_fingerprint(self.config.model),
            "tokenizer": self.tokenizer.fingerprint,
            "bf16": self.bf16,
        }


def find_model(options: dict[str, Any]) -> LocalModel:
    """Find the model and the tokenizer that the options name.

    Raises:
        OptionError: There is no such model or tokenizer on this machine, or an option cannot work.
        MissingExtraError: torch or transformers is not installed.
    """
    from brim.train.config import ModelConfig
    from brim.train.model import check_model, find_tokenizer

    check_counts(threads=options["threads"])
    check_model(options["model"])
    config = ModelConfig(**{name: options[name] for name in ("model", "tokenizer", "output")})
    return LocalModel(
        config=config, tokenizer=find_tokenizer(config, None), bf16=options["bf16"], threads=options["threads"]
    )


def generate_here(asked: Asked, model: LocalModel) -> dict[str, Any] | None:
    """Generate what is missing, and return the figures of the run on the main rank."""
    from brim.train.process_group import join_ranks

    ids = read_prompts(asked.prompts.sent, model.tokenizer)
    with join_ranks(resume="the same command resumes") as ranks:
        if ranks.is_main:
            return _on_main_rank(ranks, asked, model, ids)
        _on_other_rank(ranks, asked, model, ids)
        return None


def _on_main_rank(ranks: Ranks, asked: Asked, model: LocalModel, ids: list[Ids]) -> dict[str, Any]:
    with ExitStack() as stack:
        journal = ranks.together(lambda: stack.enter_context(opened(asked)))
        before = journal.answered
        missing = ranks.share(journal.missing)
        tally = ranks.together(lambda: _generate(ranks, asked, model, ids, journal, missing))
        # Here the other ranks have closed their journals.
        (tokens,) = ranks.total([tally.tokens])
        return ranks.together(lambda: finish(asked, journal, tally, before=before, tokens=int(tokens), prompt_ids=ids))


def _on_other_rank(ranks: Ranks, asked: Asked, model: LocalModel, ids: list[Ids]) -> None:
    """Take part in what `_on_main_rank` does, step by step."""

    def nothing() -> None:
        return None

    def generate() -> Tally:
        with opened_by_rank(asked, ranks.rank) as journal:
            return _generate(ranks, asked, model, ids, journal, missing)

    ranks.together(nothing)
    missing = ranks.share(None)
    tally = ranks.together(generate)
    ranks.total([tally.tokens])
    ranks.together(nothing)


def _generate(
    ranks: Ranks, asked: Asked, model: LocalModel, ids: list[Ids], journal: ResponseJournal, missing: NDArray[np.bool_]
) -> Tally:
    """Generate the share of this rank."""
    lengths = [len(prompt) for prompt in ids]
    mine = share_of(missing, lengths, rank=ranks.rank, world_size=ranks.world_size)
    wanted = int(mine.sum())
    if ranks.several:
        tally = Tally(total=wanted, name=f"rank {ranks.rank} of {ranks.world_size}: ")
    else:
        tally = Tally(total=journal.questions, before=journal.answered)
    if not wanted:
        return tally
    processor = _processor(asked, model, ranks.device)
    responses = processor.stream(ids, asked.samples, skip=AllBut(mine))
    tally.decoding = lambda: processor.stats
    tally.restart()

    def written(response: Response) -> Response:
        # What was recorded depends in its last bits on the rows of a batch, and these on when a run was killed.
        if asked.logprobs:
            return processor.rescored(ids[response.prompt], response)
        return replace(response, logprobs=None, sampling_logprobs=None, entropies=None)

    collect(
        asked,
        journal,
        responses,
        tally,
        written=written,
        quiet=asked.quiet or not ranks.is_main,
        project=asked.wandb if ranks.is_main else None,
    )
    tally.stop()
    return tally


def _processor(asked: Asked, model: LocalModel, device: Any) -> Any:
    """Load the model."""
    from brim.generate.processor import SequenceProcessor
    from brim.train.model import load_model

    torch = need("torch", extra="train", user="brim generate")
    if model.threads is not None:
        torch.set_num_threads(model.threads)
    loaded = load_model(model.config, model.tokenizer)
    if model.bf16:
        loaded = loaded.to(torch.bfloat16)
    return SequenceProcessor(loaded.to(device), model.tokenizer, asked.config)
