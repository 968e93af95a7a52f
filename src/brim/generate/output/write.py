"""The output of a run, written from the journal, whole or not at all, in the order of the prompts and samples."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from brim.core.atomic import atomic_file
from brim.generate.output.journal import ResponseJournal
from brim.generate.output.lines import Totals, to_line
from brim.generate.output.prompts import Prompts
from brim.generate.rollouts import Ids


def write_responses(
    output: Path,
    prompts: Prompts,
    journal: ResponseJournal,
    *,
    per_token: bool = False,
    prompt_ids: Sequence[Ids] | None = None,
) -> Totals:
    """Write all finished responses.

    Args:
        per_token: Write the fields with one number for each token, too, and `prompt_ids` if they are known.
    """
    totals = Totals()
    with atomic_file(output) as file:
        for number, sample in np.argwhere(~journal.missing).tolist():
            fields = journal.fields(number, sample)
            totals.add(fields)
            file.write(
                to_line(
                    fields,
                    id=prompts.id(number),
                    sample=sample,
                    prompt=prompts.sent[number],
                    answer=prompts.examples[number].answer,
                    prompt_ids=None if prompt_ids is None else prompt_ids[number],
                    per_token=per_token,
                )
            )
    return totals
