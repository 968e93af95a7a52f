"""Addresses of model servers: how they are read, and that their secrets stay secret."""

import base64
import pickle
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.llm.wire.address import MASK, Secret, parse_address, shown_url

KEY = "sk-proj-0123456789abcdefghijklmnop"
words = st.text(string.ascii_letters + string.digits, min_size=8, max_size=24)


@pytest.mark.parametrize(
    ("url", "name", "path"),
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434", ""),
        ("localhost:11434", "http://localhost:11434", ""),
        (" localhost:11434/ ", "http://localhost:11434", ""),
        ("LocalHost", "http://localhost", ""),
        ("HTTPS://API.OpenAI.com/v1//", "https://api.openai.com/v1", "/v1"),
        ("http://host:80/v1", "http://host/v1", "/v1"),
        ("[::1]:8080", "http://[::1]:8080", ""),
        ("http://[0:0::1]/v1", "http://[::1]/v1", "/v1"),
        ("http://host/v1/chat/completions", "http://host/v1", "/v1"),
        ("http://host:11434/api/generate", "http://host:11434", ""),
        ("http://host/v1/models/", "http://host/v1", "/v1"),
        ("https://host/api", "https://host/api", "/api"),
        ("http://host/a%20b/v1", "http://host/a%20b/v1", "/a%20b/v1"),
        ("http://bücher.example:1", "http://xn--bcher-kva.example:1", ""),
    ],
)
def test_spellings_of_a_url_are_one_address(url, name, path):
    address = parse_address(url, environ={})
    assert (address.name, address.path, str(address)) == (name, path, name)
    assert address.headers() == {}


NONSENSE = ["", "  ", "http://", "://host", "http:host", "https:/host", "ftp://host", "unix:///run/x", "http://a b"]
NONSENSE += ["::1", "::1:11434", "http://[::1", "http://host:port", "http://host:0", "host:65536", "http://h/#x"]
NONSENSE += ["http://h\\x", "http://-h", "http://a..b", "http://" + "a" * 70, "http://h\nx", "http://h/x@y"]


@pytest.mark.parametrize("url", NONSENSE)
def test_nonsense_is_refused_with_an_example(url):
    with pytest.raises(OptionError, match=r"is not the URL of a server: .*; write it like http://127\.0\.0\.1:11434"):
        parse_address(url, environ={})


def test_a_user_and_password_become_basic_authentication():
    address = parse_address("http://me:p%40ss%2Fword@host:1/v1", environ={})
    assert address.headers() == {"Authorization": "Basic " + base64.b64encode(b"me:p@ss/word").decode()}
    assert address.name == "http://host:1/v1"


def test_a_query_string_is_sent_and_not_shown():
    address = parse_address("https://host/v1?api-version=2024-10-21&code=topsecret", environ={})
    assert address.url("/v1/models") == "https://host/v1/models?api-version=2024-10-21&code=topsecret"
    assert address.name == f"https://host/v1?{MASK}"
    assert address.scrub("bad code topsecret") == f"bad code {MASK}"


@given(password=words, token=words, user=st.sampled_from(["me", ""]))
def test_no_text_of_an_address_shows_its_secrets(password, token, user):
    assume(password not in token)
    address = parse_address(f"http://{user}:{password}@host:8080/v1?key={token}", environ={})
    shown = f"{address} {address!r} {address.name} {address.authorization!r} {address.query} {address.secrets}"
    assert password not in shown
    assert token not in shown
    with pytest.raises(OptionError) as refused:
        parse_address(f"http://{user}:{password}@host:x/?key={token}", environ={})
    assert password not in str(refused.value)
    assert token not in str(refused.value)


@pytest.mark.parametrize("sign", ["/", "?", "#", "%2F", "@", ":"])
@pytest.mark.parametrize("end", ["@host:8080", "@host", "@"])
def test_a_password_with_any_sign_is_never_quoted(sign, end):
    url = f"http://me:hunter{sign}two{end}"
    try:
        shown = repr(parse_address(url, environ={}))
    except OptionError as error:
        shown = str(error)
    assert "hunter" not in shown
    assert "two" not in shown


@pytest.mark.parametrize("url", ["http://me:hunter2", "http://me:hunter2/x", "me:hunter2"])
def test_a_password_is_not_quoted_where_the_host_was_forgotten(url):
    with pytest.raises(OptionError, match="its port is not one") as refused:
        parse_address(url, environ={})
    assert "hunter2" not in str(refused.value)


@given(before=st.text(max_size=30), after=st.text(max_size=30), start=st.integers(0, 20), length=st.integers(8, 40))
def test_a_secret_and_long_parts_of_it_are_scrubbed_from_any_text(before, after, start, length):
    address = parse_address("https://host", key_env="MY_KEY", environ={"MY_KEY": KEY})
    part = KEY[start : start + length]
    text = address.scrub(f"{before}{part}{after} {KEY} {address.headers()['Authorization']}")
    assert KEY not in text
    assert part not in text
    assert before[:3] in text  # what is no secret stays


def test_a_key_comes_from_the_variable_that_is_named():
    address = parse_address(
        "http://gpu:8000/v1", key_env="GPU_KEY", environ={"GPU_KEY": KEY, "OPENAI_API_KEY": "other"}
    )
    assert address.headers() == {"Authorization": f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.openai.com/v1", "openai-key"),
        ("https://ollama.com", "ollama-key"),
        ("https://api.ollama.com", "ollama-key"),
        ("http://api.openai.com/v1", None),
        ("https://api.openai.com.evil.example/v1", None),
        ("https://evilollama.com", None),
        ("https://evil.example/api.openai.com/v1", None),
        ("https://api.openai.com:x@evil.example/v1", "Basic"),
        ("http://127.0.0.1:11434", None),
        ("http://localhost:8000/v1", None),
    ],
)
def test_a_key_is_sent_to_the_host_it_is_meant_for_and_to_no_other(url, expected):
    environ = {"OPENAI_API_KEY": "openai-key", "OLLAMA_API_KEY": "ollama-key"}
    sent = parse_address(url, environ=environ).headers().get("Authorization", "")
    assert (expected or "") in sent
    assert sent.count("-key") == (expected in environ.values())


def test_a_named_variable_that_is_not_set_is_an_error_that_names_it():
    with pytest.raises(OptionError, match="the environment variable MY_KEY is not set"):
        parse_address("http://host", key_env="MY_KEY", environ={})
    with pytest.raises(OptionError, match="the environment variable MY_KEY is not set"):
        parse_address("http://host", key_env="MY_KEY", environ={"MY_KEY": ""})


def test_a_key_given_in_the_place_of_a_variable_is_not_quoted():
    with pytest.raises(OptionError, match="never the key itself") as refused:
        parse_address("http://host", key_env=KEY, environ={})
    assert "0123" not in str(refused.value)


@given(st.sampled_from("\n\r\t \x00\x7fé\N{SNOWMAN}"), st.integers(0, len(KEY)))
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(sign, at):
    key = KEY[:at] + sign + KEY[at:]
    with pytest.raises(OptionError, match="MY_KEY") as refused:
        parse_address("http://host", key_env="MY_KEY", environ={"MY_KEY": key})
    assert "0123" not in str(refused.value)
    assert "mnop" not in str(refused.value)


def test_a_password_and_a_key_for_one_server_exclude_each_other():
    with pytest.raises(OptionError, match="give only one") as refused:
        parse_address("http://me:hunter2@host", key_env="MY_KEY", environ={"MY_KEY": KEY})
    assert "hunter2" not in str(refused.value)


def test_a_secret_is_shown_by_nothing():
    secret = Secret(KEY)
    assert f"{secret} {secret!r} {secret!s} {[secret]}" == f"{MASK} {MASK} {MASK} [{MASK}]"
    assert secret.reveal() == KEY
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_a_redirect_stays_on_the_server_only_if_scheme_host_and_port_are_its_own():
    address = parse_address("http://host:8080/v1", environ={})
    assert address.redirected("/v1/models", "/v2/models?x=1") == "http://host:8080/v2/models?x=1"
    assert address.redirected("/v1/models", "http://HOST:8080/y z") == "http://host:8080/y%20z"
    for elsewhere in (
        "https://host:8080/",
        "http://host/",
        "http://other:8080/",
        "//other/x",
        "http://[bad",
        "ftp://x",
    ):
        assert address.redirected("/v1/models", elsewhere) is None


def test_a_url_is_shown_without_what_may_be_secret():
    assert shown_url("https://me:pw@host:8443/a?key=1#x") == "https://host:8443/a"
    assert shown_url("http://[::1]:80/a") == "http://[::1]/a"
    assert "pw" not in shown_url("http://me:pw@[bad")
