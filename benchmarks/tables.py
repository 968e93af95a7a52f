"""Write docs/benchmarks.md from bench-results/*.json: tables of what brim and the best peer took, and the claims.

`run.py` does this at the end of a run that includes the planner. Nothing is measured here, and no number is typed: a
table whose results are missing is left out. A ratio is the best peer's CPU time divided by brim's: above 1, brim is
faster.
"""

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, WORDS

PAGE = ROOT / "docs" / "benchmarks.md"
INTRO = """# Benchmarks

The benchmarks wrote this page, each of them in one run. Times in its tables are CPU seconds of all threads and child
processes, the best of several rounds in which brim and its peers took turns on the same data. Everybody has one thread,
except in the length tables, in resuming, and for the loader with its thread. The best peer of a line is the fastest one
of that line. A ratio is the peer's time divided by brim's: above 1, brim is faster. A claim that did not hold says so;
claims about wall time say that too. [The benchmarks](../benchmarks/README.md) say what is measured and how it is kept
fair.
"""

Result = Mapping[str, Any]
Table = Mapping[str, Any]
Cells = Sequence[str]


def main() -> None:
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    print(f"written: {write_page(results, results.pop('claims', []))}")


def write_page(results: Mapping[str, Result], claims: Sequence[Mapping[str, Any]]) -> Path:
    parts = [INTRO, _machine(results)]
    if claims:
        cells = [(claim["claim"], claim["measured"], WORDS[claim["holds"]]) for claim in claims]
        parts.append("## Claims\n\n" + markdown(("claim", "measured", ""), cells))
    for name, sections in SECTIONS.items():
        if name in results:
            parts += sections(results[name]["tables"])
    PAGE.write_text("\n".join(parts))
    return PAGE


def paragraph(*texts: str) -> str:
    """A heading, if there is one, and text."""
    return "\n\n".join(textwrap.fill(text, 120, break_on_hyphens=False) for text in texts) + "\n"


def markdown(head: Cells, cells: Iterable[Cells]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *cells]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def _machine(results: Mapping[str, Result]) -> str:
    machines = {json.dumps({**result["machine"], "load_at_start": 0}): result["machine"] for result in results.values()}
    described = [
        f"{one.get('processor') or 'a processor'}, {one['cores']} cores, Python {one['python']}"
        for one in machines.values()
    ]
    versions = {name: version for result in results.values() for name, version in result["versions"].items()}
    peers = ", ".join(f"{name} {version}" for name, version in versions.items() if name in SHOWN)
    missing = {name: reason for result in results.values() for name, reason in result["not_available"].items()}
    absent = "".join(f" Not available: {name} ({reason})." for name, reason in missing.items())
    return paragraph(f"Measured on {'; '.join(described)}. Versions: {peers}.{absent}")


SHOWN = ("brim", "numpy", "seqpacker", "lightbinpack", "trl", "chuk-lazarus", "transformers", "lhotse", "torch")


def packing(tables: list[Table]) -> Iterator[str]:
    yield paragraph(
        "## Packing", "Rows of each capacity, from lognormal (ordinary) and uniform lengths, and from a mix of chats."
    )
    for table in picked(tables, "summary"):
        cells = [
            (
                row["name"],
                seconds(row["cpu_seconds"]),
                row["best peer"],
                seconds(float(row["peer's s"])),
                f"{row['ratio']:.2f}",
                f"{row['rows']:,}",
                f"{row['fewest rows of peers']:,}",
            )
            for row in table["rows"]
            if "ratio" in row
        ]
        head = (
            f"{table['data']}, capacity {table['capacity']:,}",
            "brim",
            "best peer",
            "its time",
            "ratio",
            "rows",
            "fewest rows of peers",
        )
        yield markdown(head, cells)


def families(tables: list[Table]) -> Iterator[str]:
    for table in picked(tables, "families"):
        yield paragraph("## Packing near the optimum", "Rows over the bound of the linear programme, in percent.")
        yield plain(
            table,
            {
                "distinct": ",",
                "bound": ",.0f",
                "rows": ",",
                "over LP %": ".3f",
                "best fit %": ".3f",
                "best peer %": ".3f",
            },
            'with mode="optimal"',
        )
    for table in picked(tables, "million"):
        yield plain(table, {"rows": ","}, table["title"])


EVERYBODY = ("brim sorted", "HF", "chuk-lazarus", "lhotse")


def planning(tables: list[Table]) -> Iterator[str]:
    cells: list[Cells] = []
    unclaimed: list[str] = []
    for table in picked(tables, "plan"):
        brim, best = beside(table, "brim sorted windows")
        if best is not None:
            title = table["title"].removeprefix("Plans of one epoch: ")
            padding, batches = _all(table, "padding %", ".2f"), _all(table, "microbatches", ",")
            cells.append((title, *compared(brim, best), padding, batches))
            if not table.get("speed_is_claimed", True):
                unclaimed.append(f" No claim of speed is made for {table['n']:,} {table['data']}.")
    yield paragraph(
        "## Plans",
        "Padding in percent and batches are those of brim, Hugging Face's sampler, chuk-lazarus and lhotse. Hugging "
        "Face's batches have no budget, and lhotse leaves most of a large one unused where there are few samples. More "
        "batches are padded less, so the claims compare with peers that make as few: at most half as many again."
        + "".join(unclaimed),
    )
    yield markdown(("one epoch", "brim", "best peer", "its time", "ratio", "padding %", "batches"), cells)


def _all(table: Table, column: str, form: str) -> str:
    """A column of everybody, brim first."""
    found = {name: [row[column] for row in table["rows"] if row["name"].startswith(name)] for name in EVERYBODY}
    return " / ".join(format(values[0], form) if values else "-" for values in found.values())


def padding(tables: list[Table]) -> Iterator[str]:
    yield paragraph(
        "## Padding",
        "Each line is six medians from 20 to 3,000 tokens and up to four sizes of an epoch. `many`: the highest "
        "padding of an epoch of 200 microbatches or more; `few`: the highest padding of a smaller one, as a multiple "
        "of a global sort. Peers: the mean over the data sets they were given, and brim's over the same. `meet "
        "again`: the highest share of pairs of samples that share a microbatch in two successive epochs of 3,000 "
        "microbatches or more.",
    )
    cells: list[Cells] = []
    for table in picked(tables, "padding"):
        budgets: dict[int, list[Any]] = {}
        for row in table["rows"]:
            budgets.setdefault(row["budget"], []).append(row)
        for budget, rows in budgets.items():
            many = [row["padding %"] for row in rows if row["microbatches"] >= 200]
            few = [row["padding %"] / row["floor %"] for row in rows if row["microbatches"] < 200 and row["floor %"]]
            company = [row["meet again %"] for row in rows if row["microbatches"] >= 3_000]
            line = [f"{table['shape']}, {budget:,}", highest(many), highest(few)]
            for peer in ("lhotse %", "HF %"):
                both = [(row["padding %"], row[peer]) for row in rows if row.get(peer) is not None]
                line.append(f"{mean(one for one, _ in both)} / {mean(other for _, other in both)}" if both else "-")
            cells.append((*line, highest(company)))
    head = (
        "lengths, budget",
        "many, %",
        "few, x",
        "brim / lhotse %",
        "brim / HF %",
        "meet again, %",
    )
    yield markdown(head, cells)


def highest(values: list[float]) -> str:
    return f"{max(values):.2f}" if values else "-"


def mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{sum(found) / len(found):.2f}"


def balance(tables: list[Table]) -> Iterator[str]:
    columns = {
        "steps": ",",
        "share %": ".2f",
        "other model %": ".2f",
        "after the fact %": ".2f",
        "empty": ",",
        "padding %": ".3f",
    }
    for table in picked(tables, "balance"):
        yield paragraph(
            "## Balance over ranks",
            "Share of the ideal if every step waits for its most expensive microbatch. `other model`: attention costs "
            "twice as much as the plan assumes; `after the fact`: microbatches were not cut for steps, and are dealt "
            "to ranks by cost.",
        )
        yield plain(table, columns, table["title"])


def objects(tables: list[Table]) -> Iterator[str]:
    cells: list[Cells] = []
    for table in picked(tables, "objects"):
        brim, best = beside(table, "brim, string ids")
        numbers = next(row for row in table["rows"] if row["name"] == "brim, row numbers")
        if best is not None:
            cells.append((f"{table['n']:,} samples", seconds(numbers["cpu_seconds"]), *compared(brim, best)))
    head = (
        "plan, and every microbatch made",
        "brim, row numbers",
        "brim, string ids",
        "best peer",
        "its time",
        "ratio",
    )
    yield "## Microbatches as objects\n\n" + markdown(head, cells)


def scale(tables: list[Table]) -> Iterator[str]:
    yield "## Scale\n"
    for table in picked(tables, "floor"):
        yield plain(table, {"cpu_seconds": ".3f", "ns a sample": ".1f", "ratio": ".2f"}, table["title"])
    columns = {"cpu_seconds": ".2f", "peak MB": ",.0f", "save s": ".2f", "open ms": ".1f"}
    for table in picked(tables, "stored"):
        yield plain(table, columns, "planned, saved, opened and resumed")
    for table in picked(tables, "jsonl"):
        yield plain(table, {"cpu_seconds": ".3f", "ratio": ".2f"}, table["title"])


def startup(tables: list[Table]) -> Iterator[str]:
    for table in picked(tables, "startup"):
        yield "## Start-up\n\n" + plain(table, {"cpu_seconds": ".4f", "ratio": ".2f"}, table["title"])


def collation(tables: list[Table]) -> Iterator[str]:
    cells: list[Cells] = []
    for subject in ("batch", "epoch"):
        for table in picked(tables, subject):
            brim, best = beside(table, "brim collate, padded int64", without=("memcpy",))
            if best is not None:
                cells.append((table["title"], *compared(brim, best), best["makes"]))
    yield paragraph(
        "## Collation and loader",
        "brim makes tokens, labels, positions, segment ids, a loss mask and cu_seqlens; `makes` says what the peer "
        "makes (t: tokens, a: attention mask, l: labels, p: positions, s: segment ids).",
    )
    yield markdown(("", "brim", "best peer", "its time", "ratio", "makes"), cells)
    for table in picked(tables, "loader"):
        yield plain(table, {"us a batch": ".1f", "ratio": ".2f"}, table["title"])


def resume(tables: list[Table]) -> Iterator[str]:
    cells: list[Cells] = []
    for table in picked(tables, "resume"):
        brim, best = beside(table, "brim loader")
        if best is not None:
            cells.append((table["title"], *compared(brim, best)))
    yield "## Resuming\n\n" + markdown(("", "brim", "best peer", "its time", "ratio"), cells)


def lengths(tables: list[Table]) -> Iterator[str]:
    cells: list[Cells] = []
    for subject, name in (("load", "brim columnar"), ("build", "brim build_lengths")):
        for table in picked(tables, subject):
            brim, best = beside(table, name)
            if best is not None:
                cells.append((table["title"], *compared(brim, best)))
    yield "## Length tables\n\n" + markdown(("", "brim", "best peer", "its time", "ratio"), cells)


SECTIONS: dict[str, Callable[[list[Table]], Iterator[str]]] = {
    "packing": packing,
    "packing_families": families,
    "planning": planning,
    "padding": padding,
    "balance": balance,
    "objects": objects,
    "scale": scale,
    "startup": startup,
    "lengths": lengths,
    "collation": collation,
    "resume": resume,
}


def picked(tables: list[Table], subject: str) -> list[Table]:
    return [table for table in tables if table.get("subject") == subject]


def beside(table: Table, name: str, without: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """The row of brim with this name, and that of the fastest peer, if there is one."""
    brim = next(row for row in table["rows"] if row["name"] == name)
    peers = [row for row in table["rows"] if not row["name"].startswith(("brim", *without))]
    return brim, min(peers, key=lambda row: row["cpu_seconds"], default=None)


def compared(brim: Any, best: Any) -> Cells:
    ratio = best["cpu_seconds"] / brim["cpu_seconds"]
    return seconds(brim["cpu_seconds"]), best["name"], seconds(best["cpu_seconds"]), f"{ratio:,.2f}"


def plain(table: Table, columns: Mapping[str, str], title: str) -> str:
    cells = [(row["name"], *(_cell(row.get(name), form) for name, form in columns.items())) for row in table["rows"]]
    return markdown((title, *("CPU s" if name == "cpu_seconds" else name for name in columns)), cells)


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def seconds(value: float) -> str:
    """With a unit in which three digits say something."""
    for unit, factor in (("s", 1), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


if __name__ == "__main__":
    main()
