"""Writers of responses: the model in this process, or a model server."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from brim.core.extras import need
from brim.core.fill import Fill
from brim.data.tokenizer.base import Tokenizer
from brim.generate.config import GenerationConfig, Stop
from brim.generate.processor import SequenceProcessor
from brim.generate.prompts.example import Example
from brim.generate.rollouts import Ids, Response
from brim.generate.server import FailedResponse, ServerGenerator
from brim.llm.config import Server
from brim.train.grpo.attempt import Attempt
from brim.train.grpo.config import GrpoConfig

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="train", user="brim.train.grpo")

NO_IDS, NO_LOGPROBS = "NoTokenIds", "NoLogprobs"


class Writer(Protocol):
    """Writes responses to prompts."""

    def write(
        self,
        examples: Sequence[Example],
        prompts: list[Ids],
        *,
        size: int,
        seed: int,
        temperature: float,
        stop: tuple[Stop, ...],
    ) -> Iterator[tuple[int, int, Attempt]]:
        """Yield (number of the prompt, number of the response, attempt without a reward) in any order."""
        ...

    @property
    def fill(self) -> Fill | None: ...
    def close(self) -> None: ...


class LocalWriter:
    """Writes with the model in this process, whatever its weights are at the time."""

    def __init__(self, model: Any, tokenizer: Tokenizer, config: GrpoConfig) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._config = config
        self._processors: dict[float, SequenceProcessor] = {}
        self.fill: Fill | None = None

    def write(
        self,
        examples: Sequence[Example],
        prompts: list[Ids],
        *,
        size: int,
        seed: int,
        temperature: float,
        stop: tuple[Stop, ...],
    ) -> Iterator[tuple[int, int, Attempt]]:
        processor = self._processor(temperature)
        given: Any = prompts
        with self._precision():
            responses = processor.stream(given, size, seed=seed, stop=stop)
        while True:
            # The caller's code between two responses runs outside of the reduced precision.
            with self._precision():
                response = next(responses, None)
            if response is None:
                break
            yield response.prompt, response.sample, attempt_of(response)
        self.fill = processor.stats.fill

    def _processor(self, temperature: float) -> SequenceProcessor:
        if temperature not in self._processors:
            options = GenerationConfig(
                temperature=temperature,
                max_new_tokens=self._config.max_new_tokens,
                gen_batch_size=self._config.gen_batch_size,
            )
            self._processors[temperature] = SequenceProcessor(self._model, self._tokenizer, options)
        return self._processors[temperature]

    def _precision(self) -> Any:
        if not self._config.bf16:
            return nullcontext()
        kind = next(self._model.parameters()).device.type
        return torch.autocast(kind, torch.bfloat16)

    def close(self) -> None:
        pass


class ServerWriter:
    """Writes with the model of a server. Which weights it has is the server's business: see `reload`."""

    def __init__(self, tokenizer: Tokenizer, config: GrpoConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._generators: dict[tuple[float, bool], ServerGenerator] = {}
        self.fill: Fill | None = None

    def write(
        self,
        examples: Sequence[Example],
        prompts: list[Ids],
        *,
        size: int,
        seed: int,
        temperature: float,
        stop: tuple[Stop, ...],
    ) -> Iterator[tuple[int, int, Attempt]]:
        rendered = not isinstance(examples[0].prompt, str)
        generator = self._generator(temperature, rendered)
        texts = [self._text(example) for example in examples]
        before = generator.stats.fill
        for response in generator.stream(texts, size, seed=seed, stop=stop):
            if isinstance(response, FailedResponse):
                attempt = Attempt.failed(type(response.failure).__name__, str(response.failure))
            else:
                attempt = self._attempt(response, temperature)
            yield response.prompt, response.sample, attempt
        after = generator.stats.fill
        self.fill = Fill(after.used - before.used, after.slots - before.slots)

    def _generator(self, temperature: float, rendered: bool) -> ServerGenerator:
        """Return what asks the servers. In prompts that are `rendered`, the template has put the special tokens."""
        key = (temperature, rendered)
        if key not in self._generators:
            options = GenerationConfig(temperature=temperature, max_new_tokens=self._config.max_new_tokens)
            servers = [Server(url=url, key_env=self._config.key_env) for url in self._config.servers]
            self._generators[key] = ServerGenerator(
                servers,
                model=self._config.server_model,
                config=options,
                logprobs=True,
                extra={"add_special_tokens": False} if rendered else None,
            )
        return self._generators[key]

    def _text(self, example: Example) -> str:
        """Return a prompt as text. A conversation is put into the model's template here, so that the server reads the
        tokens that are trained on."""
        prompt = example.prompt
        return prompt if isinstance(prompt, str) else self._tokenizer.render_chat(prompt, reply=True)

    def _attempt(self, response: Response, temperature: float) -> Attempt:
        if response.token_ids is None:
            return Attempt.failed(NO_IDS, "the server did not tell the ids of all tokens that it drew")
        # Servers cut a stop off the text, which is part of what was drawn.
        response = replace(response, text=self._tokenizer.decode(response.token_ids.tolist()))
        if response.logprobs is not None:
            return attempt_of(response)
        if self._config.correction_limit and temperature == self._config.temperature:
            return Attempt.failed(NO_LOGPROBS, "the server did not tell a log-probability for every token that it drew")
        zeros = np.zeros(len(response), np.float32)
        return attempt_of(response, zeros)

    def close(self) -> None:
        for generator in self._generators.values():
            generator.close()


def attempt_of(response: Response, logprobs: "np.ndarray[Any, np.dtype[np.float32]] | None" = None) -> Attempt:
    """Return a response as an attempt that has no reward yet."""
    assert response.token_ids is not None
    known = response.sampling_logprobs if response.sampling_logprobs is not None else response.logprobs
    column = known if logprobs is None else logprobs
    assert column is not None
    return Attempt(
        token_ids=response.token_ids,
        drawn=np.ones(len(response), np.bool_),
        logprobs=column,
        text=response.text,
        finish_reason=response.finish_reason,
        reward=None,
    )
