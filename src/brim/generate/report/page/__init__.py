"""The page on an output of `brim generate`, as one self-contained HTML file.

Everything but the charts is rendered here and needs no JavaScript. The text of models is shown and never obeyed: it is
escaped, none of it is handed to the script, and characters that cannot be seen are made visible.
"""

from html import escape
from string import Template

import numpy as np

from brim import __version__
from brim.analyze.page import page_file, render_document
from brim.analyze.page.parts import facts_html, notes_html, text_html
from brim.core.display import visible
from brim.generate.report.collect import Generated
from brim.generate.report.figures import divisions, histogram, mean_of, score_prompts, short, shortened, whole_histogram
from brim.generate.report.page import sections, words
from brim.generate.report.positions import create_gap, create_positions
from brim.generate.rollouts import REASONS

SCRIPTS = ("charts.js", "prompts.js", "report.js")


def render_report(generated: Generated, *, title: str) -> str:
    """Return the page on an output as a whole HTML document. The title is shown as it is."""
    scores = score_prompts(generated)
    parts = divisions(generated)
    lengths = whole_histogram(words.lengths_of(generated), parts)
    certainty = {"entropy": histogram(generated.entropy, parts), "logprob": histogram(per_token(generated), parts)}
    positions, gap = create_positions(generated.per_token), create_gap(generated.per_token)
    body = Template(page_file(__name__, "report.html")).substitute(
        version=escape(__version__),
        title=text_html(title),
        verdict=escape(words.verdict(generated, scores)),
        remarks=escape(words.remarks(generated, scores)),
        facts=facts_html(words.fact_list(generated, scores)),
        many="many" if scores else "few",
        notes=notes_html(words.notes(generated)),
        sections="".join(
            [
                sections.solved(scores, generated) if scores else "",
                sections.lengths(generated, divided=scores is not None),
                sections.endings(generated),
                sections.certainty(
                    generated, [name for name, one in certainty.items() if one], divided=scores is not None
                ),
                sections.positions(positions, generated.token_step) if positions else "",
                sections.gap(gap) if gap else "",
                sections.prompts(generated, scores),
            ]
        ),
    )
    everything = np.ones(gap.tokens, np.bool_) if gap else np.empty(0, np.bool_)
    spread = histogram(gap.values, {"ending": [everything]}) if gap and not gap.is_none else None
    counts = np.bincount(generated.reason, minlength=len(REASONS)).tolist()
    data = {
        "unit": words.unit_of(generated),
        "responses": len(generated),
        "endings": [list(pair) for pair in zip(REASONS, counts, strict=True)],
        "lengths": lengths.to_json() if lengths else None,
        **{name: one.to_json() if one else None for name, one in certainty.items()},
        "means": {name: short(mean_of(values)) for name, values in _means(generated).items()},
        "solved": {"bars": scores.bars, "tries": shortened(scores.tries), "all": scores.prompts} if scores else None,
        "positions": positions.to_json() if positions else None,
        "gap": spread.to_json() if spread else None,
    }
    return render_document(
        title=visible(title),
        body=body,
        style=page_file(__name__, "report.css"),
        script="\n".join(page_file(__name__, name) for name in SCRIPTS),
        data=data,
    )


def per_token(generated: Generated) -> np.ndarray:
    """Return the mean log-prob of a token for each response; NaN if it is not known, or there is no token."""
    tokens = np.where(generated.tokens > 0, generated.tokens, np.nan)
    return generated.logprob / tokens


def _means(generated: Generated) -> dict[str, np.ndarray]:
    return {"lengths": words.lengths_of(generated), "entropy": generated.entropy, "logprob": per_token(generated)}
