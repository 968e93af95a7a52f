import pytest

from brim.core.errors import DataError, OptionError
from brim.data.rows.format import Layout, RowFormat

TOKENS = {"input_ids": [1]}
MESSAGES = {"messages": [{"role": "assistant", "content": "x"}]}
PROMPT = {"prompt": "p", "response": "r"}
INSTRUCTION = {"instruction": "i", "output": "o"}
TEXT = {"text": "t"}
IN_ORDER = [
    ("tokens", TOKENS),
    ("messages", MESSAGES),
    ("prompt", PROMPT),
    ("instruction", INSTRUCTION),
    ("text", TEXT),
]


def test_the_first_shape_in_the_documented_order_wins():
    row = {}
    for kind, fields in reversed(IN_ORDER):
        row = {**row, **fields}
        assert RowFormat().layout(row).kind == kind


@pytest.mark.parametrize(("kind", "fields"), IN_ORDER)
def test_a_named_shape_wins_over_the_order(kind, fields):
    everything = {key: value for _, other in IN_ORDER for key, value in other.items()}
    assert RowFormat(shape=kind).layout(everything).kind == kind
    assert RowFormat().layout(fields).kind == kind


def test_a_null_field_does_not_make_a_shape():
    assert RowFormat().layout({"messages": None, "prompt": None, "text": "t"}).kind == "text"


def test_completion_is_a_response():
    layout = RowFormat().layout({"prompt": "p", "completion": "c"})
    assert layout.text({"prompt": "p", "completion": "c"}, "response") == "c"


def test_named_fields_are_read_and_make_the_shape():
    row = {"question": "q", "answer": "a", "text": "t"}
    layout = RowFormat(prompt_field="question", response_field="answer").layout(row)
    assert (layout.kind, layout.text(row, "prompt"), layout.text(row, "response")) == ("prompt", "q", "a")
    assert RowFormat(text_field="answer").layout(row).text(row, "text") == "a"


def test_an_id_is_found_under_its_usual_names_in_this_order():
    assert RowFormat().layout({**TEXT, "id": 1, "sample_id": 2}).id_field == "id"
    assert RowFormat().layout({**TEXT, "sample_id": 2}).id_field == "sample_id"
    assert RowFormat().layout(TEXT).id_field is None
    assert RowFormat(id_field="uid").layout({**TEXT, "id": 1}).id_field == "uid"


def test_every_option_changes_the_fingerprint():
    row = {**PROMPT, **TEXT, "id": 1}
    formats = [
        RowFormat(),
        RowFormat(shape="text"),
        RowFormat(text_field="prompt"),
        RowFormat(prompt_field="text"),
        RowFormat(response_field="text"),
        RowFormat(id_field="text"),
        RowFormat(group_field="text"),
    ]
    assert len({format.layout(row).fingerprint for format in formats}) == len(formats)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "promt"}, "shape is 'promt'.*Did you mean \"prompt\""),
        ({"text_field": "a", "prompt_field": "b"}, "text_field is 'a' and 'b' was named too"),
        ({"shape": "messages", "text_field": "a"}, "shape is 'messages', but the named fields make it 'text'"),
        ({"id_field": ""}, "id_field is empty"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        RowFormat(**options)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"id": 1, "prompt": "p", "answer": "a"},
            r'"response" is missing \(keys: id, prompt, answer\). Did you mean --response-field answer\?',
        ),
        ({"prompt": "p", "respnse": "a"}, r"Did you mean --response-field respnse\?"),
        ({"response": "r", "question": "q"}, r'"prompt" is missing .* Did you mean --prompt-field question\?'),
        ({"prompt": "p"}, r'"response" is missing \(keys: prompt\). Name the field with --response-field'),
        ({"instruction": "i"}, '"output" is missing'),
        ({"text": None}, '"text" is null'),
        (
            {"question": "q", "answer": "a"},
            "no text, prompt and response.*Did you mean --prompt-field question --response-field answer",
        ),
        ({"content": "c"}, "Did you mean --text-field content"),
        ({}, r"keys: none\). Name the fields"),
    ],
)
def test_a_row_without_its_fields_says_which_and_what_to_do(row, message):
    def read_all():
        layout = RowFormat().layout(row)
        return [layout.value(row, name) for name, _ in layout.fields]

    with pytest.raises(DataError, match=message) as caught:
        read_all()
    assert "\n" not in str(caught.value)


def test_a_group_is_a_string_or_an_integer():
    layout = Layout("text", (("text", "text"),), None, "depth")
    assert layout.group({"depth": 3}) == "3"
    assert layout.group({"depth": "three"}) == "three"
    for wrong in (None, 1.5, True, ["a"]):
        with pytest.raises(DataError, match="depth"):
            layout.group({"depth": wrong})
