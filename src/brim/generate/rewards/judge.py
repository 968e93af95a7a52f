"""The reward `judge`: a model behind a server rates a response, in the light of the reference if there is one.

The judge sees the prompt and the whole response. Both are marked as material, so that an instruction in them is not
followed; see `brim.llm.rating`. A call that fails, or a reply without a clear score, is a failure of the sample, of the
type of `brim.llm.failures`.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from brim.core.errors import OptionError
from brim.core.options import check_counts
from brim.generate.prompts.example import Example
from brim.llm.call import Reply, Sampling
from brim.llm.config import PoolConfig, Server
from brim.llm.failures import BadReply
from brim.llm.pool import AnyServer, LLMPool
from brim.llm.rating import SCALE, check_template, parse_score, rating_prompt


@dataclass(frozen=True)
class JudgeOptions:
    """Options of the reward `judge`: the model that rates responses, and its prompt."""

    servers: AnyServer | Sequence[AnyServer]
    """Addresses of model servers, `Server`s with options, or endpoints."""
    _: KW_ONLY
    model: str | None = None
    """Name of the model. Without it, the servers must have exactly one."""
    template: str | None = None
    """The criteria: a text with `{question}`, `{answer}` and perhaps `{reference}`. The judge is asked for a score from
    0 to `scale` after it. None asks for right and complete answers."""
    scale: int = SCALE
    """The highest score, which becomes a reward of 1."""
    key_env: str | None = None
    """Name of the environment variable that holds the API key, for servers that are given as addresses."""
    temperature: float = 0.0
    max_tokens: int | None = None
    """Upper limit of the tokens of a reply. One that reaches it is a failure."""
    timeout: float = 120.0
    """Seconds for a call, retries included, from its first request on."""

    def __post_init__(self) -> None:
        check_counts(scale=self.scale, max_tokens=self.max_tokens)
        if self.template is not None:
            check_template(self.template)
        if not 0 < self.timeout < math.inf:
            raise OptionError(f"the timeout of a judge must be a positive number of seconds, got {self.timeout!r}")
        if self.key_env is not None and not any(isinstance(server, str) for server in self.listed):
            raise OptionError("key_env is for servers that are given as addresses; give these servers theirs")
        self.sampling  # noqa: B018  checks the temperature

    @property
    def listed(self) -> list[AnyServer]:
        """The servers as a list."""
        if isinstance(self.servers, str) or not isinstance(self.servers, Sequence):
            return [self.servers]
        return list(self.servers)

    @property
    def sampling(self) -> Sampling:
        """Sampling options of the judge's replies."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


class Judge:
    """A reward function that asks a pool of model servers."""

    def __init__(self, options: JudgeOptions) -> None:
        """
        Raises:
            OptionError: There is no server, or the servers have several models and none is named.
            Failure: No model is named, and no server can be asked for its models.
            MissingExtraError: aiohttp is not installed.
        """
        self._options = options
        servers: list[Any] = [
            Server(url=server, key_env=options.key_env) if isinstance(server, str) else server
            for server in options.listed
        ]
        self._pool = LLMPool(servers, model=options.model, config=PoolConfig(timeout=options.timeout))
        try:
            self._pool.only_model()
        except BaseException:
            self._pool.close()
            raise

    async def __call__(self, prompt: str, response: str, example: Example) -> float:
        """Return the score divided by the scale.

        Raises:
            Failure: The judge was not reached, or gave no clear score.
        """
        options = self._options
        question = rating_prompt(prompt, response, example.answer, template=options.template, scale=options.scale)
        pending = self._pool.submit(question, sampling=options.sampling)
        try:
            reply: Reply = await pending
        except asyncio.CancelledError:
            pending.cancel()
            raise
        if reply.finish_reason == "length":
            raise BadReply(f"the judge's reply was cut off: {reply.text.strip()[-80:]!r}", server=reply.server)
        return parse_score(reply.text, scale=options.scale) / options.scale

    def close(self) -> None:
        """Close the connections to the servers."""
        self._pool.close()
