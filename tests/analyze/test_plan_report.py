"""Reports of plans: what is said, what is written, how large it is.

What the page does is tested in a browser, in test_browser.py.
"""

import base64
import html
import io
import json
import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from support.plans import lognormal
from support.reports import FIXED, KINDS, NASTY, plan, table

from brim import BatchingConfig, BatchPlan, LengthCache, LengthEntry, MismatchError, MissingExtraError, OptionError
from brim.analyze.plan_report.page import inline_json
from brim.analyze.plan_report.page.parts import brief
from brim.analyze.plan_report.page.payload import create_payload, encode
from brim.analyze.plan_report.report import create_plan_report
from brim.analyze.plan_report.view import create_plan_view, smallest
from brim.cli.plan.report import report as report_command
from brim.data.ids import Ids


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def decoded(column):
    if "value" in column:
        return np.full(column["count"], column["value"])
    if "identity" in column:
        return np.arange(column["identity"])
    return np.frombuffer(base64.b64decode(column["data"]), f"<{column['type']}").astype(np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_plan_has_a_page_with_the_numbers_of_the_plan(kind):
    made = KINDS[kind]()
    data = data_of(create_plan_report(made).html())
    view = create_plan_view(made)
    assert data["ranks"] == list(view.world_sizes)
    assert len(data["epochs"]) == made.num_epochs
    for shown, epoch in zip(data["epochs"], view.epochs, strict=True):
        columns = {name: decoded(column) for name, column in shown["columns"].items()}
        slots = columns["rows"] * columns["width"]
        assert np.array_equal(slots - columns["padding"], epoch.tokens)
        assert np.array_equal(slots + columns["extra"], epoch.cost)
        for ranks, dealt in epoch.dealt.items():
            places = decoded(shown["worlds"][str(ranks)]["places"])
            assert np.array_equal(np.where(places == len(epoch), -1, places), dealt.places.reshape(-1))


def test_the_facts_are_those_of_the_plan():
    made = plan(microbatches_per_step=4)
    facts, epoch = create_plan_report(made).facts, made.get_epoch(0)
    assert (facts["tokens"], facts["slots"]) == (epoch.fill.used, epoch.fill.slots)
    assert (facts["microbatches"], facts["steps"], facts["fill"]) == (len(epoch), epoch.num_steps, epoch.fill.ratio)
    assert facts["shapes"] == len({microbatch.shape for microbatch in epoch})
    assert facts["samples"] == facts["sequences"] == 600


def test_the_report_as_a_dict_is_json_with_every_epoch_and_number_of_ranks():
    made = create_plan_report(plan(**FIXED), world_sizes=(2, 3), name="plan/")
    found = json.loads(json.dumps(made.to_dict(), allow_nan=False, default=str))
    assert [list(epoch["dealt"]) for epoch in found["epochs"]] == [["2", "3"]] * 2
    assert found["epochs"][0]["dealt"]["3"]["imbalance"] > 0
    assert [row["own"] for row in found["strategies"]].count(True) == 1
    assert found["provenance"]["Fingerprints"]["plan"] == made.plan.fingerprint


def test_a_plan_that_is_as_cheap_as_any_is_kept_and_another_is_told_what_to_choose():
    assert create_plan_report(plan(n=5000)).advice.startswith("Keep it")
    wasteful = create_plan_report(plan(num_buckets=2, pad_policy="pad_to_bucket"))
    assert wasteful.advice == wasteful.efficiency.advice
    assert "Choose" in wasteful.advice


def test_a_plan_of_many_small_microbatches_is_not_kept_though_it_pads_nothing():
    made = create_plan_report(plan(token_budget=100_000, max_sequences=1))
    assert made.own.fill.ratio == 1.0
    assert "of the budget on average" in made.verdict
    assert not made.advice.startswith("Keep it")


def test_what_is_dropped_is_no_saving():
    """Halving the samples must not double the speed."""
    made = create_plan_report(plan(n=60, token_budget=4096, drop_last=True, **FIXED))
    before = made.efficiency.strategies[0]
    assert made.own.fill.used < before.fill.used
    assert made.rows[1].speedup == pytest.approx(
        (made.own.fill.used / made.own.cost) / (before.fill.used / before.cost)
    )


@pytest.mark.parametrize(
    ("overflow", "words"),
    [("skip", "longer than 500 tokens are left out"), ("truncate", "are cut to that"), ("split", "are in pieces")],
)
def test_the_page_says_what_became_of_long_samples(overflow, words):
    made = create_plan_report(plan(overflow=overflow, overflow_max=500))
    page = made.html()
    assert words in page
    assert f"{made.efficiency.histogram.count:,} {'pieces' if overflow == 'split' else 'samples'} of" in page


def test_empty_microbatches_of_a_share_are_its_own():
    whole = plan()
    shares = [create_plan_report(whole.shard(rank, 7)).facts for rank in range(7)]
    assert sum(facts["empty"] for facts in shares) == whole.shard(0, 7).deal(0).nulls
    assert {facts["empty"] for facts in shares} <= {0, 1}


def test_more_ranks_than_anyone_has_are_refused_at_once():
    with pytest.raises(OptionError, match="at most 16384 ranks, got 1000000"):
        create_plan_report(plan(), world_sizes=(1_000_000,))


def test_the_page_says_what_the_plan_is():
    made = plan(**FIXED)
    page = create_plan_report(made, name="runs/plan", lengths=table()).html()
    visible = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S)
    for said in (made.fingerprint, made.table.fingerprint, "belong to this plan", "Plan runs/plan", "pad_to_bucket"):
        assert said in visible
    for epoch in range(made.num_epochs):
        assert made.columns(epoch).fingerprint in visible
    for option in made.config.to_dict():
        assert f"<dt>{option.replace('_', ' ')}</dt>" in visible


def test_what_is_skipped_or_dropped_is_counted_and_named():
    lengths = LengthCache.from_lengths(
        [LengthEntry("short", 3), LengthEntry("a long one", 90), LengthEntry("other", 4)]
    )
    made = BatchPlan.build(lengths, BatchingConfig(token_budget=64, overflow="skip"))
    assert create_plan_report(made).to_dict()["provenance"]["What became of the samples"]["skipped"] == "1: a long one"
    made = BatchPlan.build(lengths, BatchingConfig(token_budget=400, drop_last=True))
    became = create_plan_report(made).to_dict()["provenance"]["What became of the samples"]
    assert became["dropped in epoch 0"] == "3: short, a long one, other"


def test_nothing_in_a_plan_can_leave_its_place_on_the_page():
    entries = [LengthEntry(f"{NASTY}{i}", 10 + i, NASTY if i % 2 else "fine") for i in range(40)]
    lengths = LengthCache.from_lists(
        [entry.sample_id for entry in entries],
        [entry.length for entry in entries],
        [entry.group for entry in entries],
        source={"path": NASTY},
        dataset_hash=NASTY,
    )
    made = BatchPlan.build(lengths, BatchingConfig(token_budget=64, overflow="skip", overflow_max=45))
    page = create_plan_report(made, name=NASTY).html()
    assert page.count("</script>") == page.count("<script") == 2
    assert "<img" not in page
    assert "<b>" not in page
    assert NASTY in data_of(page)["groups"]
    assert html.escape(f"{NASTY}36") in page


def test_inlined_json_reads_back_and_has_no_markup():
    value = {NASTY: ["<!--", "&amp;", "\u2028", "]]>", 1.5, None]}
    text = inline_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)


def test_the_page_asks_for_nothing_and_runs_only_its_own_script():
    page = create_plan_report(plan()).html()
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert not re.search(r'(src|href)="(?!#)', page)
    assert not re.search(r"@import|url\((?!#)", page.replace("`url(#", ""))
    assert not re.search(r' style="| on[a-z]+="', page)


@pytest.mark.parametrize("values", [[], [7], [3, 3, 3], [0, 255], [0, 256], [70_000, 1], [2**40, 5]])
def test_columns_survive_being_encoded(values):
    column = smallest(np.array(values, np.int64))
    assert decoded(encode(column)).tolist() == values


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (1_250_000, "1.25M"),
        (462_393_260, "462M"),
        (2.5, "2.5"),
        (3e12, "3T"),
    ],
)
def test_large_numbers_are_brief(number, said):
    assert brief(number) == said


def test_epochs_that_do_not_fit_are_left_out_and_the_page_says_so():
    report = create_plan_report(plan(epochs=9, **FIXED), world_sizes=(1, 2))
    small = report.html(max_bytes=3000)
    shown = len(data_of(small)["epochs"])
    assert 1 < shown < 9
    assert f"Epochs 0–{shown - 1} of 9 are shown" in small
    assert "are shown; more" not in report.html()


def test_an_epoch_that_does_not_fit_is_merged_without_losing_a_token():
    made = plan(n=20_000, epochs=3, groups=["a", "b"], **FIXED)
    report = create_plan_report(made, world_sizes=(1, 4))
    page = report.html(max_bytes=4000)
    data = data_of(page)
    assert "runs of neighbouring microbatches are added up" in page
    assert "Epoch 0 of 3 is shown" in page
    (epoch,), view = data["epochs"], report.view.epochs[0]
    for ranks, world in epoch["worlds"].items():
        dealt = view.dealt[int(ranks)]
        columns = {name: decoded(column) for name, column in world["columns"].items()}
        order = dealt.order()
        assert 1 < len(columns["count"]) < len(order) / 2
        assert columns["count"].sum() == len(order)
        assert columns["slots"].sum() == view.slots[order].sum()
        assert columns["padding"].sum() == view.padding[order].sum()
        assert columns["cost"].sum() == view.cost[order].sum()
        assert decoded(world["slowest"]).sum() == dealt.step_costs(view.cost).max(axis=1).sum()
        assert sum(world["bands"]["tokens"]) == sum(world["groups"]["tokens"]) == view.tokens[order].sum()
        assert decoded(world["shapes"][2]).sum() == len(order)
    assert len(page) < 150_000


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, FIXED], ids=["windows", "fixed shapes"])
def test_a_million_samples_and_three_epochs_make_a_page_of_less_than_3_megabytes(options):
    lengths = LengthCache(Ids.rows(1_000_000), lognormal(1_000_000))
    made = BatchPlan.build(lengths, BatchingConfig(token_budget=16_384, **options), num_epochs=3)
    page = create_plan_report(made).html()
    assert len(data_of(page)["epochs"]) == 3
    assert len(page) < 3_000_000


def test_a_notebook_gets_a_frame_that_holds_a_light_page():
    shown = create_plan_report(plan(n=20_000, epochs=3))._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts"' in shown
    inside = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert inside.startswith("<!doctype html>")
    assert data_of(inside)["epochs"]
    assert len(shown) < 1_000_000


def test_lengths_of_another_plan_are_refused():
    with pytest.raises(MismatchError, match=r"plan/ was built for other lengths: 1 removed: 599\..*brim plan build"):
        create_plan_report(plan(), lengths=table(599), name="plan/")


@pytest.mark.slow
def test_a_picture_has_all_panels_and_is_not_blank(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for kind in ("fixed shapes", "one sample", "nothing left", "a share"):
        path = tmp_path / "report.png"
        create_plan_report(KINDS[kind](), name="$x$ plan").save(path)
        pixels = np.asarray(image.open(io.BytesIO(path.read_bytes())).convert("L"))
        height, width = pixels.shape
        assert min(height, width) > 1000
        for row in np.array_split(pixels[height // 10 :], 3):
            for panel in np.array_split(row, 3, axis=1):
                assert panel.min() < 100 < panel.max()


def test_without_matplotlib_a_picture_is_one_line_of_advice(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MissingExtraError, match=r"brim.analyze.plan_report.figures needs matplotlib.*pip install 'brim\[plot\]'"
    ):
        create_plan_report(plan()).save(tmp_path / "report.png")
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_a_page_or_a_picture(tmp_path):
    with pytest.raises(OptionError, match=r"report.pdf: a report ends in .html or .png"):
        create_plan_report(plan()).save(tmp_path / "report.pdf")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with plan/, lengths.brim and shards/."""
    made = plan(**FIXED)
    made.save(tmp_path / "plan")
    made.table.save(tmp_path / "lengths.brim")
    made.shard(1, 3).save(tmp_path / "share")
    plan(n=700).table.save(tmp_path / "other.brim")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words):
    return CliRunner().invoke(report_command, list(words))


def test_the_command_writes_a_page_and_says_what_is_in_it(here):
    done = run("-p", "plan", "-l", "lengths.brim")
    assert done.exit_code == 0
    assert "report.html" in done.output
    assert "full" in done.output
    assert "belong to this plan" in (here / "report.html").read_text()


@pytest.mark.slow
def test_the_command_writes_a_picture_where_the_name_or_the_format_says_so(here):
    assert run("-p", "plan", "--format", "png").exit_code == 0
    assert (here / "report.png").read_bytes().startswith(b"\x89PNG")
    assert run("-p", "share", "-o", "sub/share.png").exit_code == 0
    assert (here / "sub" / "share.png").exists()


def test_the_command_shows_the_numbers_of_ranks_that_it_is_given(here):
    found = json.loads(run("-p", "plan", "-w", "3", "-w", "5", "-o", "r.html", "--json").output)
    assert (found["written"], found["ranks"]) == ("r.html", [3, 5])
    assert data_of((here / "r.html").read_text())["ranks"] == [3, 5]


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ("-p plan -l other.brim", MismatchError, "built for other lengths"),
        ("-p plan -o report.txt", OptionError, "ends in .html or .png"),
        ("-p plan -o report.html --format png", OptionError, "name it report.png"),
        ("-p plan -w 0", OptionError, "at least 1, got 0"),
        ("-p share -w 2", OptionError, "rank 1 of 3"),
    ],
)
def test_the_command_refuses_what_cannot_work_and_writes_nothing(here, words, error, said):
    before = sorted(here.iterdir())
    done = run(*words.split())
    assert isinstance(done.exception, error)
    assert said in str(done.exception)
    assert sorted(here.iterdir()) == before


def test_the_payload_of_a_lazy_plan_is_that_of_a_stored_one(tmp_path):
    made = plan(**FIXED)
    made.save(tmp_path / "lazy", lazy=True)
    made.save(tmp_path / "stored")
    payloads = [create_payload(create_plan_view(BatchPlan.load(tmp_path / name)), 10**6) for name in ("lazy", "stored")]
    assert payloads[0] == payloads[1] == create_payload(create_plan_view(made), 10**6)
