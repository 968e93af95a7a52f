"""Chat templates: the Jinja program in a tokenizer's files that renders a conversation as one text.

The environment is that of `transformers` (sandboxed, loop controls, `tojson`, `raise_exception`), so the text is the
same, without the second that importing `transformers` takes. One thing differs on purpose: `strftime_now` gives a fixed
day, because a sample must not change its length at midnight.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from brim.core.errors import DataError
from brim.core.extras import need

TODAY = datetime(2024, 7, 26)


def render_template(
    template: str, messages: Sequence[Mapping[str, Any]], *, reply: bool, specials: Mapping[str, str]
) -> str:
    """Render a conversation; with `reply`, followed by the header of the assistant's turn.

    Raises:
        DataError: The template refuses the conversation, or fails on it.
    """
    jinja2 = need("jinja2", extra="hf", user="brim.data.tokenizer.template")
    try:
        return _compiled(template).render(
            messages=messages, add_generation_prompt=reply, tools=None, documents=None, **specials
        )
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"the chat template does not accept this conversation: {' '.join(str(error).split())}"
        ) from None


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    sandbox = need("jinja2.sandbox", extra="hf", user="brim.data.tokenizer.template")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = TODAY.strftime
    return environment.from_string(_without_generation_tags(template))


def _without_generation_tags(template: str) -> str:
    """Replace `{% generation %}` tags, which mark the assistant's text, by blocks without effect: spans are found by
    rendering instead.
    """
    opened = re.sub(r"\{%(-?)\s*generation\s*(-?)%\}", r"{%\1 if true \2%}", template)
    return re.sub(r"\{%(-?)\s*endgeneration\s*(-?)%\}", r"{%\1 endif \2%}", opened)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise need("jinja2", extra="hf", user="brim.data.tokenizer.template").exceptions.TemplateError(message)
