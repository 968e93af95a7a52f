import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import BrimError, MissingExtraError, did_you_mean
from brim.core.extras import need
from brim.core.fill import Fill

fills = st.integers(0, 10**6).flatmap(lambda slots: st.integers(0, slots).map(lambda used: Fill(used, slots)))


@given(fills, fills)
def test_fills_add_up(left, right):
    both = left + right
    assert (both.used, both.slots) == (left.used + right.used, left.slots + right.slots)
    assert 0 <= both.ratio <= 1
    assert both.waste == pytest.approx(1 - both.ratio)


def test_a_fill_cannot_use_more_than_was_paid_for():
    with pytest.raises(ValueError, match="11 of 10"):
        Fill(11, 10)


def test_a_missing_extra_is_one_line_that_says_what_to_install():
    with pytest.raises(
        MissingExtraError, match=r"brim\.batch\.torch needs no_such_module, .* pip install 'brim\[torch\]'"
    ) as caught:
        need("no_such_module", extra="torch", user="brim.batch.torch")
    assert isinstance(caught.value, ImportError)
    assert "\n" not in str(caught.value)


def test_an_extra_that_is_broken_itself_says_so(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import not_there_either")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_either") as caught:
        need("broken_extra", extra="hf", user="brim")
    assert not isinstance(caught.value, BrimError)


def test_did_you_mean_suggests_only_what_is_close():
    assert did_you_mean("respnse", ["response", "prompt"]) == ' Did you mean "response"?'
    assert did_you_mean("xyz", ["response", "prompt"]) == ""
