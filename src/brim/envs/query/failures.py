"""How a step of a query environment can fail, besides the failures of `brim.llm`.

Failure
├── RewardFailed       the reward raised an error, or returned no finite number
├── ModelChanged       a server answers with another model than before
└── EmbeddingChanged   the vectors have another size than before

TooManyInvalid         too many steps are invalid, so that the run stops
"""

from brim.core.errors import BrimError
from brim.llm.failures import Failure


class ResetFailed(Failure):
    """An episode could not begin, so no step was taken."""


class RewardFailed(Failure):
    """The reward raised an error, or returned no finite number."""


class ModelChanged(Failure):
    """A server answers with another model than before."""


class EmbeddingChanged(Failure):
    """The vectors have another size than before."""


class TooManyInvalid(BrimError):  # noqa: N818
    """Too many steps are invalid, so that what was learned from the others would mean little."""
