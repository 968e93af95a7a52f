"""Generate with the model of one or several servers."""

from dataclasses import replace
from typing import Any

from brim.cli.generate.progress import Tally
from brim.cli.generate.run import Asked, collect, finish, opened
from brim.cli.llm.answering import check_servers
from brim.cli.llm.flags import named_servers
from brim.core.errors import OptionError
from brim.generate.output.prompts import Prompts
from brim.generate.output.share import AllBut
from brim.llm.config import PoolConfig


def served_identity(options: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the responses of a server, by the names of the options."""
    # A server sends log-probs only if it is asked for them, so they cannot be added to a journal without them.
    return {"model": options["model"], "server": True, "server_logprobs": options["logprobs"]}


def generate_served(asked: Asked, options: dict[str, Any]) -> dict[str, Any]:
    """Ask for what is missing, and return the figures of the run."""
    from brim.generate.server import ServerGenerator
    from brim.llm.pool import LLMPool

    servers = [
        replace(server, limit=options["limit"])
        for server in named_servers(options["server"], options["protocol"], options["key_env"])
    ]
    pool_config = PoolConfig(timeout=options["timeout"], attempts=options["attempts"])
    chat = _as_chat(asked.prompts)
    with opened(asked) as journal:
        before = journal.answered
        if before < journal.questions:
            with LLMPool(servers, model=options["model"], config=pool_config) as pool:
                check_servers(pool, options["model"])
        tally = Tally(total=journal.questions, before=before)
        with ServerGenerator(
            servers,
            model=options["model"],
            config=asked.config,
            pool_config=pool_config,
            chat=chat,
            logprobs=asked.logprobs,
        ) as generator:
            responses = generator.stream(asked.prompts.sent, asked.samples, skip=AllBut(journal.missing))
            collect(
                asked,
                journal,
                responses,
                tally,
                quiet=asked.quiet,
                servers=lambda: generator.stats,
                project=asked.wandb,
            )
        tally.stop()
        return finish(asked, journal, tally, before=before, tokens=tally.tokens)


def _as_chat(prompts: Prompts) -> bool:
    """Return whether the prompts are conversations.

    Raises:
        OptionError: Some are, and others are texts: a server cannot be asked for both in one run.
    """
    conversations = sum(not isinstance(prompt, str) for prompt in prompts.sent)
    if 0 < conversations < len(prompts):
        raise OptionError(
            f"{conversations} of {len(prompts)} prompts are conversations, the others are texts; pass --chat to send "
            "each text as a message of the user"
        )
    return conversations > 0
