"""A reward that asks a model to rate an answer. The prompt and the reading of the reply are in `brim.llm.rating`."""

from dataclasses import dataclass
from typing import ClassVar

from brim.envs.query.attempt import Attempt
from brim.llm.rating import SCALE, check_template, parse_score, rating_prompt


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Rates an answer from 0 to 1 by the score of a model, which sees the original question, the answer, and the
    reference if there is one."""

    name: ClassVar[str] = "judge"
    needs_reference: ClassVar[bool] = False
    model: str | None = None
    """Name of the judge; None is the target model itself."""
    template: str | None = None
    """The criteria: a text with `{question}`, `{answer}` and perhaps `{reference}`. An explanation of the marks is put
    before it, and a request for the score after it."""

    def __post_init__(self) -> None:
        if self.template is not None:
            check_template(self.template)

    def prompt(self, question: str, answer: str, reference: str | None) -> str:
        """Return the prompt for the judge. Equal texts give equal prompts."""
        return rating_prompt(question, answer, reference, template=self.template)

    async def __call__(self, attempt: Attempt) -> float:
        """Ask the judge.

        Raises:
            BadReply: The judge gave no clear score.
        """
        prompt = self.prompt(attempt.question.text, attempt.answer, attempt.question.reference)
        return parse_score(await attempt.calls.ask(prompt, purpose="judge", model=self.model)) / SCALE
