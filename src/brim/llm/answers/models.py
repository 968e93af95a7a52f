"""Whether the servers of a pool have a model, before anything is asked."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from brim.llm.failures import Failure, ModelMissing

MOST_SHOWN = 10


def check_model(found: "Mapping[str, Sequence[str] | Failure]", model: str) -> list[Failure]:
    """Check that a server answers and has the model, and return the failures of the servers that do not answer.

    Args:
        found: The models of each server, as `LLMPool.models` returns them. An empty list means that the server does not
            say, and counts as having the model.

    Raises:
        ModelMissing: No server that answers has the model. The message lists the nearest names.
        Failure: No server answers.
    """
    failures = [answer for answer in found.values() if isinstance(answer, Failure)]
    lists = [answer for answer in found.values() if not isinstance(answer, Failure)]
    if not lists and failures:
        raise failures[0]
    if any(not names or has_model(names, model) for names in lists):
        return failures
    known = sorted({name for names in lists for name in names})
    close = get_close_matches(model, known, n=3, cutoff=0.5)
    listed = ", ".join(known[:MOST_SHOWN]) + (f" and {len(known) - MOST_SHOWN} more" if len(known) > MOST_SHOWN else "")
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise ModelMissing(f"no server has the model {model!r} (models: {listed}).{hint}", server=", ".join(found))


def has_model(names: Sequence[str], model: str) -> bool:
    """Return whether a model is among these names. To Ollama, a name without a tag means the tag "latest"."""
    return model in names or f"{model}:latest" in names or model.removesuffix(":latest") in names
