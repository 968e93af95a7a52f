import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError
from brim.data.rows.encode import encode_rows, measure_rows
from brim.data.rows.format import RowFormat
from brim.data.tokenizer.base import ByteTokenizer, load_tokenizer

BYTE = ByteTokenizer()

words = st.text(max_size=30)
turns = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": words}), max_size=4
)
chats = turns.map(lambda before: [*before, {"role": "assistant", "content": "fine"}])
ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)
shapes = st.one_of(
    st.lists(st.fixed_dictionaries({"text": words.map(lambda text: text + "!")}), min_size=1),
    st.lists(st.fixed_dictionaries({"prompt": words, "response": words.map(lambda text: text + "!")}), min_size=1),
    st.lists(
        st.fixed_dictionaries(
            {"instruction": words, "output": words.map(lambda text: text + "!")}, optional={"input": words}
        ),
        min_size=1,
    ),
    st.lists(st.fixed_dictionaries({"messages": chats}), min_size=1),
    st.lists(st.fixed_dictionaries({"input_ids": ids}), min_size=1),
)


def where(number):
    return f"rows.jsonl:{number + 1}"


def one(row, tokenizer=BYTE, **options):
    """The text of what is read, and of what is learned, and whether the end token is learned."""
    tokens, mask = encode_rows([row], tokenizer, RowFormat(**options), where)[0]
    assert len(tokens) == len(mask)
    learned = tokens[mask == 1]
    return (
        tokenizer.decode(tokens[mask == 0]),
        tokenizer.decode(learned),
        bool(len(learned)) and int(learned[-1]) == tokenizer.eos_id,
    )


@pytest.fixture(scope="module")
def tokenizers(bpe_file, plain_file, chat_folder):
    return [BYTE, *map(load_tokenizer, ("gpt2", bpe_file, plain_file, chat_folder))]


@pytest.mark.slow
@given(shapes)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_measuring_agrees_with_encoding_for_every_shape_and_tokenizer(tokenizers, rows):
    for tokenizer in tokenizers:
        encoded = encode_rows(rows, tokenizer, RowFormat(), where)
        assert measure_rows(rows, tokenizer, RowFormat(), where).tolist() == [len(tokens) for tokens, _ in encoded]
        assert all(len(tokens) == len(mask) and mask.sum() > 0 for tokens, mask in encoded)


@given(words, words)
def test_the_response_and_the_end_token_are_learned_and_the_prompt_is_not(prompt, response):
    separator = "" if not prompt or prompt[-1].isspace() else "\n"
    assert one({"prompt": prompt, "response": response}) == (prompt + separator, response, True)


def test_a_text_is_learned_as_a_whole():
    assert one({"text": "abc"}) == ("", "abc", True)


def test_an_instruction_and_its_input_are_joined_by_an_empty_line():
    assert one({"instruction": "add", "input": "1 2", "output": "3"}) == ("add\n\n1 2\n", "3", True)
    assert one({"instruction": "add", "input": "", "output": "3"}) == ("add\n", "3", True)
    assert one({"instruction": "add", "input": None, "output": "3"}) == ("add\n", "3", True)


def test_the_start_token_comes_first_and_is_not_learned(bpe_file):
    tokenizer = load_tokenizer(bpe_file)
    tokens, mask = encode_rows([{"prompt": "hello", "response": "world"}], tokenizer, RowFormat(), where)[0]
    assert (tokens[0], mask[0]) == (tokenizer.bos_id, 0)
    assert (tokens[-1], mask[-1]) == (tokenizer.eos_id, 1)


def test_a_tokenizer_without_special_tokens_adds_none(plain_file):
    tokenizer = load_tokenizer(plain_file)
    tokens, _ = encode_rows([{"text": "hello"}], tokenizer, RowFormat(), where)[0]
    assert tokens.tolist() == tokenizer.encode_batch(["hello"])[0].tolist()


@pytest.mark.slow
def test_no_token_straddles_the_border_between_prompt_and_response():
    gpt2 = load_tokenizer("gpt2")
    tokens, mask = encode_rows([{"prompt": "Hello wor ", "response": "ld"}], gpt2, RowFormat(), where)[0]
    assert tokens[mask == 1].tolist() == [*gpt2.encode_batch(["ld"])[0], gpt2.eos_id]


def test_tokens_are_taken_as_they_are_with_the_mask_or_labels_that_they_bring():
    rows = [
        {"input_ids": [5, 6, 7]},
        {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1], "attention_mask": [1, 1, 1]},
        {"input_ids": [5, 6, 7], "labels": [-100, -100, 7]},
        {"input_ids": [5, 6, 7], "loss_mask": [False, True, False]},
    ]
    encoded = encode_rows(rows, BYTE, RowFormat(), where)
    assert all(tokens.tolist() == [5, 6, 7] for tokens, _ in encoded)
    assert [mask.tolist() for _, mask in encoded] == [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_ids": [1, 2], "loss_mask": [1]}, '"loss_mask" has 1 entries for 2 tokens'),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, '"loss_mask" holds values from 1 to 2; they must lie in 0..1'),
        ({"input_ids": [1, 2], "labels": [2, -100]}, r'"labels" differs from "input_ids" at position 0 \(2, 1\)'),
        ({"input_ids": [1], "labels": [1], "loss_mask": [1]}, "keep one of them"),
        ({"input_ids": [1, None]}, "not a flat list of integers"),
        ({"input_ids": [[1], [2, 3]]}, "not a flat list of integers"),
        ({"input_ids": [1.5]}, "not a flat list of integers"),
        ({"input_ids": "12"}, '"input_ids" is a string; it must be a list of integers'),
        ({"input_ids": [-1]}, "must lie in 0"),
        ({"input_ids": []}, "the row has no tokens"),
        ({"text": 5}, '"text" is an integer; it must be a string'),
        ({"prompt": "p", "response": ["r"]}, '"response" is a list; it must be a string'),
        ({"instruction": "i", "input": 3, "output": "o"}, '"input" is an integer'),
        ({"messages": []}, '"messages" is empty'),
        ({"messages": "hi"}, '"messages" is a string'),
        ({"messages": ["hi"]}, r"messages\[0\] has no role"),
        ({"messages": [{"role": "assistant", "content": None}]}, r'messages\[0\]: "content" is null'),
        ({"messages": [{"role": "user", "content": "x"}]}, r"nothing to learn \(roles: user\)"),
    ],
)
def test_a_row_of_the_wrong_kind_is_an_error_with_its_place(row, message):
    for run in (encode_rows, measure_rows):
        with pytest.raises(DataError, match=message) as caught:
            run([row], BYTE, RowFormat(), where)
        assert str(caught.value).startswith("rows.jsonl:1: ")
        assert "\n" not in str(caught.value)


def test_a_later_row_that_lacks_its_response_is_not_taken_for_another_shape():
    rows = [{"prompt": "p", "response": "r"}, {"prompt": "p", "text": "t"}]
    with pytest.raises(DataError, match=r'^rows\.jsonl:2: "response" is missing'):
        measure_rows(rows, BYTE, RowFormat(), where)


CONVERSATION = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi there\n"},
    {"role": "user", "content": "sum?"},
    {"role": "assistant", "content": "12 é"},
]


def test_without_a_template_every_assistant_turn_and_its_end_are_learned():
    tokens, mask = encode_rows([{"messages": CONVERSATION}], BYTE, RowFormat(), where)[0]
    assert BYTE.decode(tokens) == "system: be brief\nuser: hello\nassistant: hi there\n\nuser: sum?\nassistant: 12 é"
    assert BYTE.decode(tokens[mask == 1]) == "hi there\n12 é"
    assert (tokens[mask == 1] == BYTE.eos_id).sum() == 2


def test_a_last_turn_of_the_user_is_read_and_not_learned():
    assert one({"messages": [*CONVERSATION, {"role": "user", "content": "bye"}]})[0].endswith("user: bye\n")


def test_with_a_template_every_assistant_turn_and_its_end_marker_are_learned(chat_folder):
    chat = load_tokenizer(chat_folder)
    tokens, mask = encode_rows([{"messages": CONVERSATION}], chat, RowFormat(), where)[0]
    assert tokens.tolist() == chat.encode_batch([chat.render_chat(CONVERSATION)])[0].tolist()
    learned = tokens[mask == 1]
    assert chat.decode(learned) == "hi there\n12 é"
    assert (learned == chat.eos_id).sum() == 2
    assert learned[-1] == chat.eos_id


def test_white_space_behind_an_end_marker_is_not_learned(chat_folder):
    chat = load_tokenizer(chat_folder)
    for content in ("", "hi", " hi \n", "hi <|im_end|>"):
        messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": content}]
        tokens, mask = encode_rows([{"messages": messages}], chat, RowFormat(), where)[0]
        assert (tokens[mask == 1][-1], mask[-1]) == (chat.eos_id, 0)


def test_white_space_is_learned_if_it_is_the_end_marker(tmp_path, chat_saver):
    lines = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    lines += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    chat = load_tokenizer(chat_saver(tmp_path / "lines", lines))
    tokens, mask = encode_rows([{"messages": CONVERSATION[:3]}], chat, RowFormat(), where)[0]
    assert chat.decode(tokens[mask == 1]).endswith("hi there\n\n")


def test_a_template_that_rewrites_earlier_turns_is_an_error_that_says_so(tmp_path, chat_saver):
    only_last = "{% for m in messages %}{{ m['content'] if loop.last else '[...]' }}{% endfor %}"
    chat = load_tokenizer(chat_saver(tmp_path / "rewrites", only_last))
    for run in (encode_rows, measure_rows):
        with pytest.raises(DataError, match=r"^rows.jsonl:1: the chat template of rewrites writes turn 3 differently"):
            run([{"messages": CONVERSATION}], chat, RowFormat(), where)
