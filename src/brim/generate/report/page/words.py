"""The sentences and facts of the page, with the numbers in them."""

import numpy as np

from brim.analyze.page.forms import counted, large, length, number, share
from brim.analyze.page.parts import Fact
from brim.generate.report.collect import LONGEST, MOST_RESPONSES, Generated
from brim.generate.report.figures import FULL, Scores, known, mean_of, percentiles
from brim.generate.report.lines import Floats
from brim.generate.report.positions import Gap, Positions
from brim.generate.rollouts import REASONS


def unit_of(generated: Generated) -> str:
    """Return what lengths are counted in: characters if the number of tokens is never known."""
    return "characters" if np.isnan(generated.tokens).all() else "tokens"


def lengths_of(generated: Generated) -> Floats:
    return generated.characters if unit_of(generated) == "characters" else generated.tokens


def cut_off(generated: Generated) -> int:
    """Return the number of responses that the limit of new tokens ended."""
    return int((generated.reason == REASONS.index("length")).sum())


def verdict(generated: Generated, scores: Scores | None) -> str:
    """Return the outcome in one or two sentences."""
    responses, prompts = counted(len(generated), "response"), counted(generated.prompts, "prompt")
    if scores is None:
        mean = mean_of(lengths_of(generated))
        return (
            f"{responses} to {prompts}, {length(mean)} {unit_of(generated)} long on average. There are no scores, so "
            "it is not known which of them are right."
        )
    many = counted(scores.responses, "scored response")
    solved = f"{share(scores.solved, scores.responses)} of {many} solve their prompt."
    if scores.responses == 1:
        solved = f"The only scored response {'solves' if scores.solved else 'does not solve'} its prompt."
    if generated.G == 1:
        return f"{solved} There is one response for each of {prompts}."
    some = scores.prompts - scores.never
    always = f"{scores.always:,} ({share(scores.always, scores.prompts)})"
    return (
        f"{solved} {some:,} of {counted(scores.prompts, 'prompt')} ({share(some, scores.prompts)}) are solved by at "
        f"least one of {generated.G:,} responses, {always} by all of them."
    )


def remarks(generated: Generated, scores: Scores | None) -> str:
    """Return what else must be known: groups without a signal, responses cut off, missing or without a score."""
    said: list[str] = []
    if scores is not None and scores.alike:
        said.append(
            f"For {scores.alike:,} of {counted(scores.compared, 'prompt')} ({share(scores.alike, scores.compared)}), "
            "all responses have the same score: GRPO learns nothing from such a group."
        )
    elif scores is not None and scores.compared:
        said.append("The responses to every prompt differ in their scores, so GRPO can learn from every group.")
    cut = cut_off(generated)
    if cut:
        were = "was" if cut == 1 else "were"
        said.append(f"{counted(cut, 'response')} ({share(cut, len(generated))}) {were} cut off at the length limit.")
    else:
        said.append("No response was cut off at the length limit.")
    if missing := missing_from(generated):
        short = int((np.bincount(generated.prompt) < generated.G).sum())
        said.append(
            f"{counted(missing, 'response')} to {counted(short, 'prompt')} {'is' if missing == 1 else 'are'} missing: "
            "calls failed, or the output is not complete."
        )
    if scores is not None and scores.unscored:
        said.append(f"{counted(scores.unscored, 'prompt')} without a score count in none of these shares.")
    return " ".join(said)


def missing_from(generated: Generated) -> int:
    """Return the number of responses that the output lacks."""
    return generated.prompts * generated.G - len(generated)


def fact_list(generated: Generated, scores: Scores | None) -> list[Fact]:
    """Return the large numbers at the top of the page."""
    lengths, unit, cut = lengths_of(generated), unit_of(generated), cut_off(generated)
    spread, missing = percentiles(lengths), missing_from(generated)
    facts = [
        Fact("prompts", "Prompts", f"{generated.prompts:,}", f"{counted(generated.G, 'response')} each"),
        Fact("responses", "Responses", f"{len(generated):,}", f"{missing:,} missing" if missing else "none missing"),
        Fact("tokens", unit.capitalize(), large(known(lengths).sum()), _told(generated)),
        Fact(
            "length", "Mean length", length(mean_of(lengths)), f"{unit}, median {length(spread[3])}" if spread else ""
        ),
        Fact("truncated", "Cut off", share(cut, len(generated)), f"{cut:,} at the length limit"),
    ]
    if scores is None:
        return [*facts, Fact("entropy", "Mean entropy", number(mean_of(generated.entropy)), "nats per token")]
    some, of = scores.prompts - scores.never, counted(scores.prompts, "prompt")
    return [
        *facts,
        Fact("score", "Mean score", number(scores.mean), f"{share(scores.solved, scores.responses)} solved"),
        Fact("any", f"Solved by at least one of {generated.G:,}", share(some, scores.prompts), f"{some:,} of {of}"),
        Fact(
            "all",
            f"Solved by all of {generated.G:,}",
            share(scores.always, scores.prompts),
            f"{scores.always:,} of {of}",
        ),
    ]


def _told(generated: Generated) -> str:
    if unit_of(generated) == "characters":
        return "token counts are not known"
    told = len(known(generated.tokens))
    return f"of the {told:,} responses that tell it" if told < len(generated) else "in all responses"


def notes(generated: Generated) -> list[str]:
    """Return what a reader could misunderstand about the numbers."""
    if unit_of(generated) == "characters":
        return ["No line tells the number of tokens, so lengths are counted in characters."]
    unknown = len(generated) - len(known(generated.tokens))
    if unknown:
        return [f"The number of tokens of {counted(unknown, 'response')} is not known; they are missing from lengths."]
    return []


def solved_words(scores: Scores) -> str:
    """Say how the prompts divide, and what GRPO can learn from them."""
    said = f"{scores.never:,} of {counted(scores.prompts, 'prompt')} are never solved, {scores.sometimes:,} sometimes, "
    said += f"{scores.always:,} always."
    if not scores.compared:
        said = f"{scores.always:,} of {counted(scores.prompts, 'prompt')} are solved, with one response each."
    else:
        said += " Only groups with different scores have advantages other than 0, so that GRPO can learn from them."
    if scores.partial:
        said += " A response solves its prompt if its score is 1; a part of a score counts in the mean score only."
    return said


def length_words(generated: Generated) -> str:
    """Describe the distribution of lengths, and how the bars are read."""
    unit, spread = unit_of(generated), percentiles(lengths_of(generated))
    if spread is None:
        return "No length is known."
    middle, most, longest = (length(spread[at]) for at in (3, 5, 6))
    cut = cut_off(generated)
    longer = f" {counted(cut, 'response')} would have become longer, but for the limit." if cut else ""
    return (
        f"Half of the responses have at most {middle} {unit}, 95% at most {most}; the longest has {longest}.{longer} A "
        "bar counts the responses of a range of lengths."
    )


def ending_words(generated: Generated) -> str:
    counts = np.bincount(generated.reason, minlength=len(REASONS)).tolist()
    many, reason = max(zip(counts, REASONS, strict=True))
    return (
        f"Most responses, {share(many, len(generated))}, were ended by {reason}. “eos” is the model's own end token, "
        "“stop” a text or token that was given to end responses, “length” the limit of new tokens: a long bar there "
        "means that answers were cut off."
    )


def certainty_words(generated: Generated) -> str:
    """Say how certain the model was, and whether it was more certain where it was right."""
    own = "at temperature 1 with nothing truncated"
    entropy = mean_of(generated.entropy)
    if entropy is None:
        return f"Log-probs are those of the model itself, {own}."
    said = f"The mean entropy of a response is {number(entropy)} nats on average"
    solved, others = (mean_of(generated.entropy[mask]) for mask in (generated.score >= FULL, generated.score < FULL))
    if solved is not None and others is not None:
        said += f": {number(solved)} for solved responses, {number(others)} for the others"
    return f"{said}. Entropies and log-probs are those of the model itself, {own}."


def position_words(found: Positions, step: int) -> str:
    """Say how the curves are read, and where they end."""
    said = "The line is the mean over the responses that are so long, the band holds the middle half of the values. "
    said += "Points far to the right are of long responses only."
    if found.last[-1] < found.longest:
        many = counted(found.enough, "response")
        said += f" The curves end at token {found.last[-1]:,}, the last one that at least {many} reach."
    if step > 1:
        said += f" They are of one in {step:,} responses, to bound the memory that a page takes to make."
    return said


def gap_words(gap: Gap) -> str:
    """Say how much the distribution that tokens were drawn from differs from the model's own."""
    if gap.is_none:
        return (
            f"All {gap.tokens:,} tokens have the same log-prob under the distribution that they were drawn from and "
            "under the model: nothing was scaled or truncated."
        )
    more = "higher" if gap.mean >= 0 else "lower"
    return (
        f"Under the distribution that was sampled from, the log-prob of a token is {number(abs(gap.mean))} nats {more} "
        f"than under the model, on average; the largest difference is {number(gap.largest)}. Temperature and "
        "truncation cause it. A policy gradient on these responses needs log-probs at the same temperature."
    )


def card_words(generated: Generated) -> str:
    """Say which prompts are shown, and what of them is left out."""
    shown = len(generated.cards)
    said = f"All {shown:,} prompts are here." if shown > 1 else "The only prompt is here."
    if shown < generated.prompts:
        said = (
            f"{shown:,} of {generated.prompts:,} prompts are here: one in {generated.card_step:,}, spread evenly over "
            "the output. The others would make this page too large; all numbers above include them."
        )
    said += " Unfold a prompt to see its responses side by side. Text is shown as it was written; invisible characters "
    said += "appear as escapes."
    if generated.G > MOST_RESPONSES:
        said += f" Of each prompt, the first {MOST_RESPONSES} responses are here."
    texts = [part.text for card in generated.cards for part in card.responses]
    texts += [text for card in generated.cards for _, text in card.prompt]
    if any(text.length > LONGEST for text in texts):
        said += f" Texts are cut off after {LONGEST:,} characters."
    return said
