from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.llm.mutations import MUTATIONS, Mutation, load_mutation

queries = st.text() | st.text(st.sampled_from(list("{}query %$\\n"))) | st.sampled_from(["{query}", "{other}{query}"])
templates = st.lists(st.sampled_from(["{query}", "{other}", "{", "}", "{{", "query", "\\1", " "])).map("".join)


@given(queries, queries, st.sampled_from(MUTATIONS))
def test_the_query_is_in_the_prompt_exactly_as_it_is(query, other, name):
    mutation = load_mutation(name)
    before, after = mutation.template.split("{query}")
    if mutation.needs_other:
        before = other.join(before.split("{other}"))
    assert mutation.apply(query, other) == before + query + after


@given(templates.filter(lambda template: "{query}" in template), queries, queries)
def test_every_field_is_replaced_once_and_inserted_text_is_never_searched(template, query, other):
    """Pieces between the fields of one kind contain none of it, so each can be treated by itself."""
    expected = query.join(other.join(piece.split("{other}")) for piece in template.split("{query}"))
    assert Mutation("own", "", template).apply(query, other) == expected


@given(queries, queries)
def test_a_second_query_that_is_not_needed_is_ignored(query, other):
    shorten = load_mutation("shorten")
    assert not shorten.needs_other
    assert shorten.apply(query, other) == shorten.apply(query) == shorten.apply(query, None)


def test_a_second_query_that_is_missing_is_refused_and_an_empty_one_is_not():
    crossover = load_mutation("crossover")
    assert crossover.needs_other
    with pytest.raises(OptionError, match=r"the mutation 'crossover' needs a second query in the place of {other}"):
        crossover.apply("Why?")
    assert Mutation("mixed", "", "{query} like {other}.").apply("a", "") == "a like ."


def test_text_of_a_query_is_never_expanded_again():
    twice = Mutation("twice", "", "{query} and {query}")
    assert twice.apply("{query} {0} {name!r} %s") == "{query} {0} {name!r} %s and {query} {0} {name!r} %s"


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_says_what_it_does_and_asks_for_the_query_alone(name):
    mutation = load_mutation(name)
    assert mutation.name == name
    assert mutation.description.endswith(".")
    assert mutation.template.count("{query}") == 1
    assert mutation.template.count("{other}") == mutation.needs_other
    assert mutation.template.count("{") == 1 + mutation.needs_other
    assert "only." in mutation.template.splitlines()[-1]
    assert "#" not in mutation.template


def test_there_are_several_mutations_and_their_names_are_sorted():
    assert {"rephrase", "simplify", "shorten", "formalize", "add_context", "make_specific"} <= set(MUTATIONS)
    assert {"expand", "break_into_steps", "crossover"} <= set(MUTATIONS)
    assert list(MUTATIONS) == sorted(MUTATIONS)
    assert [name for name in MUTATIONS if load_mutation(name).needs_other] == ["crossover"]


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(OptionError, match=r"there is no mutation 'refrase'; there are add_context, .*\"rephrase\"\?"):
        load_mutation("refrase")


@pytest.mark.parametrize("given", [str, Path])
def test_a_file_of_the_user_works_the_same(tmp_path, given):
    path = tmp_path / "politely.txt"
    path.write_text("# Ask politely.\nSay {query} politely. {name}\n", encoding="utf-8-sig")
    mutation = load_mutation(given(path))
    assert mutation == Mutation("politely", "Ask politely.", "Say {query} politely. {name}")
    assert mutation.apply("{name}?") == "Say {name}? politely. {name}"
    assert not mutation.needs_other


def test_a_file_of_the_user_may_have_a_second_query(tmp_path):
    (tmp_path / "like.txt").write_text("# Ask like another.\nAsk {query} as in {other}.\n")
    mutation = load_mutation(tmp_path / "like.txt")
    assert mutation.needs_other
    assert mutation.apply("{other}?", "{query}!") == "Ask {other}? as in {query}!."


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
