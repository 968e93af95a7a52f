from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.llm.mutations import MUTATIONS, Mutation, load_mutation

queries = st.text() | st.text(st.sampled_from(list("{}query %$\\n")))


@given(queries, st.sampled_from(MUTATIONS))
def test_the_query_is_in_the_prompt_exactly_as_it_is(query, name):
    mutation = load_mutation(name)
    before, after = mutation.template.split("{query}")
    assert mutation.apply(query) == before + query + after


def test_text_of_a_query_is_never_expanded_again():
    twice = Mutation("twice", "", "{query} and {query}")
    assert twice.apply("{query} {0} {name!r} %s") == "{query} {0} {name!r} %s and {query} {0} {name!r} %s"


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_says_what_it_does_and_asks_for_the_query_alone(name):
    mutation = load_mutation(name)
    assert mutation.name == name
    assert mutation.description.endswith(".")
    assert mutation.template.count("{query}") == 1
    assert mutation.template.count("{") == 1
    assert "only." in mutation.template.splitlines()[-1]
    assert "#" not in mutation.template


def test_there_are_several_mutations_and_their_names_are_sorted():
    assert {"rephrase", "simplify", "shorten", "formalize", "add_context", "make_specific"} <= set(MUTATIONS)
    assert list(MUTATIONS) == sorted(MUTATIONS)


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(OptionError, match=r"there is no mutation 'refrase'; there are add_context, .*\"rephrase\"\?"):
        load_mutation("refrase")


@pytest.mark.parametrize("given", [str, Path])
def test_a_file_of_the_user_works_the_same(tmp_path, given):
    path = tmp_path / "politely.txt"
    path.write_text("# Ask politely.\nSay {query} politely. {other}\n", encoding="utf-8-sig")
    mutation = load_mutation(given(path))
    assert mutation == Mutation("politely", "Ask politely.", "Say {query} politely. {other}")
    assert mutation.apply("{other}?") == "Say {other}? politely. {other}"


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"Say {query}\n", r'bad\.txt:1: a template begins with a line "# description", got \'Say {query}\''),
        (b"#\nSay {query}\n", r"bad\.txt:1: a template begins"),
        (b"", r"bad\.txt:1: a template begins"),
        (b"# About {query}\nSay {qeury}\n", r"bad\.txt: the template does not contain {query}"),
        (b"\xff\xfe\x00", r"bad\.txt is not text in UTF-8"),
        (b"# Large\n{query}" + b"x" * (1 << 20), r"bad\.txt is too large for a template \(1048591 bytes"),
    ],
)
def test_a_file_that_is_no_template_is_refused(tmp_path, contents, message):
    (tmp_path / "bad.txt").write_bytes(contents)
    with pytest.raises(DataError, match=message):
        load_mutation(tmp_path / "bad.txt")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"cannot read the template .*none\.txt: No such file"):
        load_mutation(f"{tmp_path}/none.txt")
    with pytest.raises(OptionError, match=r"does not contain {query}"):
        Mutation("own", "", "no field")
