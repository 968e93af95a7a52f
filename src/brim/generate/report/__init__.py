"""The page on an output of `brim generate`: one self-contained HTML file.

    lines       the output, read and checked line by line
    collect     numbers of all responses in columns, and the text of as many prompts as fit into a page
    figures     numbers for tables and charts
    page/       sentences, tables, cards, and the document

The text of models is shown and never obeyed. Nothing here imports torch, and the output is never held in memory.
"""

import os
from pathlib import Path

from brim.core.atomic import atomic_file, check_target
from brim.core.errors import OptionError
from brim.generate.report.collect import collect_responses
from brim.generate.report.lines import read_lines
from brim.generate.report.page import render_report


def write_report(output: str | os.PathLike[str], page: str | os.PathLike[str]) -> None:
    """Read an output of `brim generate`, and write a page on it, atomically.

    Raises:
        DataError: The output is empty, damaged, or not one of `brim generate`; with the file and the line.
        OptionError: The page cannot be written there, or would replace the output.
    """
    output, page = Path(output), Path(page)
    check_target(page)
    if page.exists() and output.exists() and page.samefile(output):
        raise OptionError(f"the page would replace the output {output}; give it another name, such as report.html")
    generated = collect_responses(read_lines(output))
    content = render_report(generated, title=output.name).encode()
    with atomic_file(page) as file:
        file.write(content)
