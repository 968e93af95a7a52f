"""A response as a line of JSON, and sums over all lines.

    {"id": "5f3a9c..", "sample": 0, "prompt": "2 + 2 =", "response": " 4", "finish_reason": "stop", "tokens": 3,
     "logprob": -1.25, "entropy": 0.75, "answer": "4", "score": 1.0}

A field whose value is not known is absent: the answer and the score of a prompt that has no reference, "logprob" and
"entropy" if they were not asked for, or a server did not send them. Numbers for each token are in fields of their own,
which are written if they are asked for. They are float32, written in the fewest digits that read back as the same
float32. Nothing depends on time, on batch sizes, or on which response ended first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from brim.generate.report.figures import FULL
from brim.generate.rollouts import Column, Ids, Response

FROM_RESPONSE = ("response", "finish_reason", "tokens", "logprob", "entropy")
PER_TOKEN = ("token_ids", "logprobs", "sampling_logprobs", "entropies")
"""Fields with one number for each token of the response."""

Fields = Mapping[str, Any]
"""The fields of a line that come from the response, and not from its prompt."""


def fields_of(response: Response, score: float | None) -> Fields:
    """Return the fields of a response, with those for each token. What is not known is absent."""
    fields = {
        "response": response.text,
        "finish_reason": response.finish_reason,
        "tokens": _size(response),
        "logprob": _sum(response.logprobs),
        "entropy": _mean(response.entropies),
        "score": score,
        **{name: getattr(response, name) for name in PER_TOKEN},
    }
    return {name: value for name, value in fields.items() if value is not None}


def to_json(fields: Fields) -> bytes:
    """Return fields as JSON on one line."""
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)


def to_line(
    fields: Fields,
    *,
    id: str,
    sample: int,
    prompt: str | Sequence[Mapping[str, Any]],
    answer: str | None,
    prompt_ids: Ids | None = None,
    per_token: bool = False,
) -> bytes:
    """Return the line of a response. `per_token` adds the fields for each token, and `prompt_ids` if they are given."""
    line: dict[str, Any] = {"id": id, "sample": sample, "prompt": prompt}
    line |= {name: fields[name] for name in FROM_RESPONSE if name in fields}
    if answer is not None:
        line["answer"] = answer
    if "score" in fields:
        line["score"] = fields["score"]
    if per_token and prompt_ids is not None:
        line["prompt_ids"] = prompt_ids
    if per_token:
        line |= {name: fields[name] for name in PER_TOKEN if name in fields}
    return to_json(line) + b"\n"


@dataclass
class Totals:
    """Sums over responses."""

    responses: int = 0
    tokens: int = 0
    """Tokens of the responses, as far as their number is known."""
    counted: int = 0
    """Responses whose number of tokens is known."""
    entropy: float = 0.0
    """Sum of the entropies before all tokens, in nats."""
    finish_reasons: Counter[str] = field(default_factory=Counter[str])
    checked: int = 0
    """Responses that have a score."""
    passed: int = 0
    """Responses with the full score, which is 1."""
    score: float = 0.0
    """Sum of the scores."""

    def add(self, fields: Fields) -> None:
        tokens: int | None = fields.get("tokens")
        score: float | None = fields.get("score")
        self.responses += 1
        self.finish_reasons[fields["finish_reason"]] += 1
        if tokens is not None:
            self.counted += 1
            self.tokens += tokens
            self.entropy += tokens * float(fields.get("entropy", 0.0))
        if score is not None:
            self.checked += 1
            self.passed += score >= FULL
            self.score += score

    @property
    def mean_length(self) -> float | None:
        """Tokens of a response, on average."""
        return self.tokens / self.counted if self.counted else None

    @property
    def mean_entropy(self) -> float | None:
        """Entropy before a token, on average over all tokens."""
        return self.entropy / self.tokens if self.tokens else None

    @property
    def pass_rate(self) -> float | None:
        """Share of the checked responses whose score is 1."""
        return self.passed / self.checked if self.checked else None

    @property
    def mean_score(self) -> float | None:
        return self.score / self.checked if self.checked else None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures that a report of the run shows."""
        return {
            "responses": self.responses,
            "tokens": self.tokens,
            "mean_length": self.mean_length,
            "finish_reasons": dict(sorted(self.finish_reasons.items())),
            "checked": self.checked,
            "pass_rate": self.pass_rate,
            "mean_score": self.mean_score,
        }


def _size(response: Response) -> int | None:
    """Return the number of tokens; a server may tell their log-probs and not their ids, or neither."""
    known = response.logprobs if response.token_ids is None else response.token_ids
    return None if known is None else len(known)


def _sum(column: Column | None) -> np.float32 | None:
    return None if column is None else np.float32(column.sum(dtype=np.float64))


def _mean(column: Column | None) -> np.float32 | None:
    return None if column is None or not len(column) else np.float32(column.mean(dtype=np.float64))
