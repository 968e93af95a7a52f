"""The page on an output of `brim generate`: what is read, counted, said and written.

What the page does in a browser is tested in test_report_browser.py.
"""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiers
from support.generated import HOSTILE, create_hostile, create_output, write_output
from support.pages import Tags

from brim.analyze.page.forms import length, number, share
from brim.core.display import visible
from brim.core.errors import DataError, OptionError
from brim.generate.report import write_report
from brim.generate.report.collect import LONGEST, MOST_RESPONSES, PAGE_BYTES, Thinned, collect_responses
from brim.generate.report.figures import BINS, divisions, histogram, nice_step, score_prompts, whole_histogram
from brim.generate.report.lines import read_lines
from brim.generate.report.page import render_report
from brim.generate.report.page.cards import common_beginning
from brim.generate.report.page.words import remarks, verdict
from brim.generate.report.positions import POINTS, create_gap, create_positions

LINES = create_output(40, 8, logprobs=True)
PLAIN = {"id": "a", "sample": 0, "prompt": "p", "response": "r", "finish_reason": "eos"}


def line(**changes):
    return {**PLAIN, **changes}


def collected(lines, tmp_path, **limits):
    return collect_responses(read_lines(write_output(tmp_path / "out.jsonl", lines)), **limits)


def page_of(lines, tmp_path):
    write_report(write_output(tmp_path / "out.jsonl", lines), tmp_path / "page.html")
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def data_of(page):
    """The numbers of a page. NaN and Infinity are not JSON."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    return json.loads(text, parse_constant=pytest.fail)


def facts_of(page):
    return dict(re.findall(r'data-fact="(\w+)">([^<]*)<', page))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


def test_the_facts_are_sums_and_means_of_the_lines(tmp_path):
    groups = [LINES[at : at + 8] for at in range(0, len(LINES), 8)]
    hits = [sum(one["score"] for one in group) for group in groups]
    cut = sum(one["finish_reason"] == "length" for one in LINES)
    tokens = [one["tokens"] for one in LINES]
    assert facts_of(page_of(LINES, tmp_path)) == {
        "prompts": "40",
        "responses": "320",
        "tokens": f"{sum(tokens):,}",
        "length": f"{sum(tokens) / 320:.1f}",
        "truncated": f"{cut / 320:.1%}",
        "score": f"{sum(hits) / 320:.3f}",
        "any": f"{sum(hit > 0 for hit in hits) / 40:.1%}",
        "all": f"{sum(hit == 8 for hit in hits) / 40:.1%}",
    }


scores = st.sampled_from([0.0, 0.25, 1.0]) | st.none()
outputs = st.lists(st.lists(scores, min_size=1, max_size=5), min_size=1, max_size=6)


def scored(groups):
    return [
        line(id=str(number), sample=sample, score=score, tokens=7 * number + sample)
        for number, group in enumerate(groups)
        for sample, score in enumerate(group)
    ]


@given(outputs)
@settings(max_examples=50)
def test_prompts_are_counted_as_their_definition_says(folder, groups):
    found = score_prompts(collected(scored(groups), folder))
    known = [[score for score in group if score is not None] for group in groups]
    known = [group for group in known if group]
    if not known:
        assert found is None
        return
    solved = [[score == 1 for score in group] for group in known]
    assert found.never == sum(not any(group) for group in solved)
    assert found.always == sum(all(group) for group in solved)
    assert found.sometimes == sum(any(group) and not all(group) for group in solved)
    assert found.alike == sum(len(group) > 1 and len(set(group)) == 1 for group in known)
    assert found.unscored == len(groups) - len(known)
    assert found.mean == pytest.approx(np.mean(np.concatenate(known)))
    assert sum(bar.prompts for bar in found.bars) == found.prompts == len(known)
    assert sum(bar.alike for bar in found.bars) == found.alike
    assert found.bars[0].prompts == found.never
    assert found.bars[-1].prompts == found.always
    for k, share_of_k in enumerate(found.tries, 1):  # pass@k: over all choices of k responses
        chances = [np.mean([any(some) for some in itertools.combinations(g, k)]) for g in solved if len(g) >= k]
        assert share_of_k == pytest.approx(np.mean(chances))


@given(st.lists(st.integers(0, 5000) | st.none(), min_size=1, max_size=80))
@settings(max_examples=50)
def test_a_histogram_of_lengths_counts_every_known_length_in_its_bin(folder, lengths):
    lines = [line(id=str(at), tokens=tokens) for at, tokens in enumerate(lengths)]
    generated = collected(lines, folder)
    found = whole_histogram(generated.tokens, divisions(generated))
    known = [tokens for tokens in lengths if tokens is not None]
    if not known:
        assert found is None
        return
    assert len(found.bins) <= BINS + 1
    counts = np.sum(found.counts["ending"], axis=0).tolist()
    assert counts == [sum(low <= tokens <= high for tokens in known) for low, high in found.bins]
    assert sum(counts) == len(known)
    assert counts[0] > 0 < counts[-1]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80))
@settings(max_examples=50)
def test_a_histogram_loses_no_value_and_says_where_far_ones_are(values):
    values = np.array(values)
    found = histogram(values, {"ending": [np.ones(len(values), bool)]})
    assert sum(found.counts["ending"][0]) == len(values)
    assert len(found.bins) <= 2 * BINS
    tiny = 1e-9 * max(1, abs(values).max())
    assert found.open_low or values.min() >= found.bins[0].low - tiny
    assert found.open_high or values.max() <= found.bins[-1].high + tiny


@given(st.floats(1e-9, 1e9))
def test_steps_are_1_2_or_5_times_a_power_of_ten(size):
    step = nice_step(size)
    assert size * (1 - 1e-6) <= step <= size * 2.5 * (1 + 1e-6)
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=30), st.integers(0, 99))
@settings(max_examples=40)
def test_curves_over_positions_are_means_and_quartiles_of_the_tokens_there(lengths, seed):
    random = np.random.default_rng(seed)
    arrays = [random.uniform(-5, 0, n) for n in lengths]
    found = create_positions([{"logprobs": array} for array in arrays])
    if not any(lengths):
        assert found is None
        return
    assert len(found.first) <= POINTS
    assert found.first[0] == 1
    assert found.last[-1] <= max(lengths)
    assert sum(n >= found.last[-1] for n in lengths) >= min(found.enough, sum(n > 0 for n in lengths))
    curve = found.curves["logprob"]
    for at in {0, len(found.first) // 2, len(found.first) - 1}:
        inside = np.concatenate([array[found.first[at] - 1 : found.last[at]] for array in arrays])
        assert curve.mean[at] == pytest.approx(inside.mean())
        assert [curve.low[at], curve.high[at]] == pytest.approx(np.percentile(inside, (25, 75)).tolist())
        assert found.alive[at] == sum(n >= found.first[at] for n in lengths)


def test_curves_end_where_fewer_than_a_twentieth_of_the_responses_live():
    arrays = [np.zeros(10)] * 95 + [np.zeros(100)] * 5
    assert create_positions([{"entropies": one} for one in arrays]).last[-1] == 10
    assert create_positions([{"entropies": one} for one in arrays[5:] + arrays[-5:]]).last[-1] == 100


def test_equal_log_probs_of_model_and_sampling_have_no_chart(tmp_path):
    same = [{**one, "sampling_logprobs": one["logprobs"]} for one in LINES[:16]]
    assert create_gap(collected(same, tmp_path).per_token).is_none
    page = page_of(same, tmp_path)
    assert "nothing was scaled or truncated" in page
    assert 'id="gap-chart"' not in page
    assert data_of(page)["gap"] is None
    assert "gap" not in data_of(page)["positions"]
    page = page_of(LINES[:16], tmp_path)
    assert 'id="gap-chart"' in page
    gap = np.concatenate([np.subtract(one["sampling_logprobs"], one["logprobs"]) for one in LINES[:16]])
    assert f"is {gap.mean():.3f} nats higher than under the model" in page
    assert sum(data_of(page)["gap"]["counts"]["ending"][0]) == len(gap)


@given(st.lists(st.integers(1, 50), max_size=200), st.integers(1, 400))
def test_thinning_keeps_every_nth_item_within_the_limit(sizes, limit):
    thinned = Thinned(limit)
    for at, size in enumerate(sizes):
        if thinned.wants(at):
            thinned.items[at] = size
            thinned.grow(at, size)
    assert list(thinned.items) == list(range(0, len(sizes), thinned.step))
    assert thinned.size == sum(thinned.items.values())
    assert thinned.size <= limit or len(thinned.items) <= 1


def test_of_a_large_output_prompts_are_shown_that_are_spread_evenly_and_fit(tmp_path):
    generated = collected(LINES, tmp_path, page_bytes=60_000, most_tokens=4_000)
    numbers = [card.number for card in generated.cards]
    assert numbers == list(range(0, 40, generated.card_step))
    assert 1 < len(numbers) < 40
    page = render_report(generated, title="out")
    assert f"{len(numbers)} of 40 prompts are here: one in {generated.card_step}, spread evenly" in page
    assert page.count("<details") == len(numbers)
    assert f"They are of one in {generated.token_step} responses" in page
    assert facts_of(page)["prompts"] == "40"
    assert sum(len(one["logprobs"]) for one in generated.per_token) <= 4_000


def test_many_and_long_responses_are_cut_and_counted(tmp_path):
    lines = [line(sample=at, response="y" * (LONGEST + 5), tokens=3, score=at % 2) for at in range(40)]
    page = page_of(lines, tmp_path)
    assert page.count("<article") == MOST_RESPONSES
    assert f"{40 - MOST_RESPONSES} more responses are left out of this page" in page
    assert page.count("5 more characters are left out of this page") == MOST_RESPONSES
    assert "20 of 40 solved" in page
    assert len(page) < PAGE_BYTES


def test_a_prompt_that_was_drawn_twice_is_two_prompts_and_order_does_not_matter(tmp_path):
    once = [line(id=name, sample=sample, score=1, tokens=1) for name in "ab" for sample in range(3)]
    assert collected([*once, *once[:3]], tmp_path).prompts == 3
    assert collected([once[at] for at in (5, 0, 3, 1, 4, 2)], tmp_path).prompts == 2
    other = [{**one, "prompt": "another"} for one in once]
    assert collected([*once, *other], tmp_path).prompts == 4


DAMAGED = {
    "no JSON": ("{\n", "not JSON ("),
    "NaN": (json.dumps(line(entropy=math.nan)) + "\n", "NaN is not a number of JSON"),
    "infinite": (json.dumps(line()).replace('"r"', '"r", "entropy": 1e999') + "\n", '"entropy" must be a number'),
    "torn": (json.dumps(line())[:-9], "the last line is torn"),
    "a list": ("[1, 2]\n", "the line is a list of 2, not an object"),
    "foreign": (
        '{"question": "q", "\\u001b[31m": 1}\n',
        '"id" is missing (keys: question, \\x1b[31m); is this an output',
    ),
    "no reason": (json.dumps(line(finish_reason=None)) + "\n", "must be one of eos, stop, length, got null"),
    "other reason": (json.dumps(line(finish_reason="abort")) + "\n", 'got "abort"'),
    "id": (json.dumps(line(id=7)) + "\n", '"id" must be a text, got 7'),
    "sample": (json.dumps(line(sample=-1)) + "\n", '"sample" must be a whole number from 0 to 999,999, got -1'),
    "prompt": (json.dumps(line(prompt={"a": 1})) + "\n", "must be a text or a list of messages, got an object"),
    "response": (json.dumps(line(response=["x"])) + "\n", '"response" must be a text, got a list of 1'),
    "tokens": (json.dumps(line(tokens=1.5)) + "\n", '"tokens" must be a whole number that is not negative, got 1.5'),
    "huge": (
        json.dumps(line(logprob=-1e300)) + "\n",
        "must be a number of at most 1e+09 in size, or null, got -1e+300",
    ),
    "a text": (json.dumps(line(logprob="x" * 99)) + "\n", "…"),
    "score": (json.dumps(line(score=2)) + "\n", '"score" must lie between 0 and 1, got 2'),
    "answer": (json.dumps(line(answer=4)) + "\n", '"answer" must be a text, got 4'),
    "column": (
        json.dumps(line(entropies=[0.1, None])) + "\n",
        '"entropies" must be a list of numbers, got a list of 2',
    ),
    "columns": (
        json.dumps(line(entropies=[0.1], logprobs=[0.1, 0.2])) + "\n",
        '"logprobs" has 2 numbers, but "entropies" has 1',
    ),
    "too many": (json.dumps(line(tokens=3, logprobs=[0.1])) + "\n", '"logprobs" has 1 numbers, but "tokens" is 3'),
    "too large": (json.dumps(line(logprobs=[1e99])) + "\n", '"logprobs" must hold finite numbers'),
    "deep": ("[" * 100_000 + "\n", "not JSON (nested too deeply"),
    "bytes": (b"\xff\xfe\n", "invalid UTF-8 at byte 1 of the line"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_or_foreign_line_is_named_with_its_file_and_line(kind, tmp_path):
    content, words = DAMAGED[kind]
    output, page = tmp_path / "out.jsonl", tmp_path / "page.html"
    page.write_text("as before")
    before = json.dumps(line()) + "\n\n"
    output.write_bytes(before.encode() + (content if isinstance(content, bytes) else content.encode()))
    with pytest.raises(DataError) as error:
        write_report(output, page)
    assert str(error.value).startswith(f"{output}:3: ")
    assert words in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400
    assert page.read_text() == "as before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "page.html"]


@pytest.mark.parametrize(
    ("content", "words"), [("", ":1: the file is empty"), ("\n \n", ":2: the file has only blank")]
)
def test_an_output_without_responses_is_refused(content, words, tmp_path):
    (tmp_path / "out.jsonl").write_text(content)
    with pytest.raises(DataError, match=words):
        write_report(tmp_path / "out.jsonl", tmp_path / "page.html")


def test_the_page_never_replaces_its_output(tmp_path):
    output = write_output(tmp_path / "out.jsonl", [line()])
    (tmp_path / "link").symlink_to(output)
    for page in (output, tmp_path / "link"):
        with pytest.raises(OptionError, match="would replace the output"):
            write_report(output, page)
    with pytest.raises(OptionError, match="it is a directory"):
        write_report(output, tmp_path)
    with pytest.raises(FileNotFoundError):
        write_report(tmp_path / "none.jsonl", tmp_path / "page.html")


def hostile_lines(text):
    """An output in which this text is everything that models or data can name."""
    prompt = [{"role": text, "content": text}, {"role": "user", "content": text}]
    return [line(id=text, sample=at, prompt=prompt, response=text, answer=text, score=at, tokens=3) for at in (0, 1)]


@given(st.text(st.characters(), min_size=1, max_size=40).filter(lambda text: text.strip() and text.count("\n") < 9))
@settings(max_examples=30)
def test_no_text_of_a_model_makes_or_changes_an_element(folder, text):
    assert Tags(page_of(hostile_lines(text), folder)).seen == Tags(page_of(hostile_lines("text"), folder)).seen


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in ("long", "lines", "blank", "empty")])
def test_hostile_text_is_shown_as_it_is_with_every_character_visible(name, tmp_path):
    page = page_of(hostile_lines(HOSTILE[name]), tmp_path)
    assert Tags(page).words.count(visible(HOSTILE[name])) >= 5
    assert all(char.isprintable() or char == "\n" for char in page)


def test_no_text_of_the_output_is_handed_to_the_script(tmp_path):
    data = json.dumps(data_of(page_of(list(create_hostile(logprobs=True)), tmp_path)))
    assert not re.search(r"script|window|xxx|line 1|red", data)


def test_messages_are_shown_with_their_roles_and_other_content_as_json(tmp_path):
    prompt = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": 1}]},
    ]
    words = Tags(page_of([line(prompt=prompt), line(id="b", prompt=[])], tmp_path)).words
    for part in ("system", "Be brief.", "user", "assistant", "no messages", "(empty prompt)"):
        assert part in words
    assert any('"text": "Hi"' in part for part in words)
    assert any('"tool_calls"' in part for part in words)


def test_titles_of_prompts_leave_out_what_all_of_them_share(tmp_path):
    page = page_of(LINES, tmp_path)
    assert re.search(r'class="ask"><bdi>… \d+ \+ \d+\? …</bdi>', page)
    assert common_beginning(["the same", "the same"]) == 0
    assert common_beginning([]) == 0
    assert common_beginning(["a long x", "a long y"]) == 0
    assert common_beginning(["a long beginning x", "a long beginning y"]) == len("a long beginning ")


def test_numbers_that_a_server_does_not_tell_are_left_out(tmp_path):
    lines = [line(id=str(at), sample=0, response="word " * at, tokens=None) for at in range(1, 9)]
    page = page_of(lines, tmp_path)
    facts = facts_of(page)
    assert facts["tokens"] == f"{sum(5 * at for at in range(1, 9))}"
    assert facts["entropy"] == "–"
    assert "so lengths are counted in characters" in page
    for gone in ("certainty", "positions", "gap", "solved"):
        assert f'<section id="{gone}"' not in page
    assert not re.search(r"\bnan\b|None", page.split("<main")[1].split("<script")[0])
    some = page_of([*lines, line(id="x", tokens=4, logprob=-2.0)], tmp_path)
    assert "The number of tokens of 8 responses is not known" in some
    assert facts_of(some)["tokens"] == "4"
    assert '<section id="certainty"' in some


OUTPUTS = {
    "one response": [line()],
    "one scored response": [line(score=1, tokens=5, entropy=0.0, logprob=0.0)],
    "an empty response": [line(response="", tokens=0, entropies=[], logprobs=[], sampling_logprobs=[])],
    "one response each": create_output(9, 1),
    "all solved": scored([[1, 1, 1]] * 4),
    "sizes differ": scored([[1, 0], [0], [None, 1, 0.25]]),
    "twenty each": create_output(5, 20, logprobs=True),
    "not all have columns": [*LINES[:8], line(id="x", tokens=2), line(id="y", tokens=2, entropies=[1, 2])],
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_every_kind_of_output_has_a_page_whose_numbers_are_json(kind, tmp_path):
    page = page_of(OUTPUTS[kind], tmp_path)
    data = data_of(page)
    assert data["responses"] == len(OUTPUTS[kind]) == sum(count for _, count in data["endings"])


@pytest.mark.parametrize(
    ("groups", "said", "more"),
    [
        (
            [[1, 0], [0, 0]],
            "25.0% of 4 scored responses solve their prompt. 1 of 2 prompts (50.0%)",
            "For 1 of 2 prompts",
        ),
        (
            [[1, 0], [0, 1]],
            "2 of 2 prompts (100%) are solved by at least one of 2 responses, 0 (0%) by all",
            "every group",
        ),
        (
            [[1], [0]],
            "50.0% of 2 scored responses solve their prompt. There is one response",
            "No response was cut off",
        ),
        ([[1]], "The only scored response solves its prompt.", ""),
        ([[None, None]], "2 responses to 1 prompt, 0.5 tokens long on average. There are no scores", ""),
        ([[1, 1], [1]], "", "1 response to 1 prompt is missing"),
        ([[1, 1], [None, None]], "", "1 prompt without a score count in none of these shares"),
    ],
)
def test_the_verdict_says_how_much_is_solved_and_remarks_what_is_missing(groups, said, more, tmp_path):
    generated = collected(scored(groups), tmp_path)
    assert said in verdict(generated, score_prompts(generated))
    assert more in remarks(generated, score_prompts(generated))


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(0, 9, "0%"), (9, 9, "100%"), (1, 3, "33.3%"), (1, 9999, "<0.1%"), (9998, 9999, ">99.9%"), (0, 0, "0%")],
)
def test_a_share_is_all_or_nothing_only_if_it_is(part, whole, words):
    assert share(part, whole) == words


def test_numbers_are_brief():
    assert [number(value) for value in (0.4125, -0.0001, -1.5, -1234.56, None)] == [
        "0.412",
        "0.000",
        "−1.500",
        "−1,234.6",
        "–",
    ]
    assert [length(value) for value in (7.0, 86.25, 1204.4, None)] == ["7", "86.2", "1,204", "–"]


def test_the_page_asks_for_nothing_runs_only_its_own_script_and_is_small(tmp_path):
    page = page_of(LINES[:8], tmp_path)
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert not re.search(r'(src|href)="(?!#)', page)
    assert not re.search(r' style="| on[a-z]+="', page)
    assert page.count("<script") == 2
    assert "innerHTML" not in page
    frame = re.sub(r'<div id="cards">.*?</details></div>|id="data">.*?</script>', "", page, flags=re.S)
    assert len(frame.encode()) < 60_000


def test_making_a_page_needs_no_torch():
    for name in ("__init__", "lines", "collect", "figures", "positions", "page/__init__"):
        assert tiers.marks_of_import(Path(tiers.ROOT) / f"src/brim/generate/report/{name}.py") == set()
