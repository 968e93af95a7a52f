"""Self-contained HTML pages: one file that needs neither a network nor a server.

A page brings its body, its style and its script; the document around them, the colours, the tables and the frame of
its charts come from here. A Content-Security-Policy with the hashes of the page's own style and script allows no
others.

A body is HTML: whoever makes it escapes what comes from data, best with `brim.analyze.page.parts.text_html`.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from brim import __version__

STYLES = ("page.css",)
SCRIPTS = ("page.js", "draw.js")


def render_document(*, title: str, body: str, style: str, script: str, data: Mapping[str, Any]) -> str:
    """Return a whole HTML document.

    Args:
        title: Plain text.
        body: HTML, without the body element itself.
        style: CSS, which follows the common style.
        script: JavaScript, which follows the common script. It finds `data` as a constant of that name.
        data: Values for JSON. A number that is not finite is refused.
    """
    style = "\n".join([*(page_file(__name__, name) for name in STYLES), style])
    script = "\n".join(['"use strict";', *(page_file(__name__, name) for name in SCRIPTS), script])
    return Template(page_file(__name__, "document.html")).substitute(
        policy=_policy(style, script),
        version=escape(__version__),
        title=escape(title),
        css=style,
        body=body,
        data=inline_json(data),
        script=script,
    )


def page_file(package: str, name: str) -> str:
    """Return the text of a file in a package: a template, a style or a script."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def inline_json(value: Any) -> str:
    """Return JSON that cannot end the script element it is placed in, whatever strings it contains."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
