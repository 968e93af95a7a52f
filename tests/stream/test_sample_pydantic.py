"""`StreamSample` as a Pydantic type, and without Pydantic."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from support.replays import sample, samples

from brim.core.errors import DataError, OptionError
from brim.stream.sample import FIELDS, SampleSource, StreamSample

pydantic = pytest.importorskip("pydantic")

writable = samples().filter(lambda one: "\udc80" not in (one.episode_id or ""))
"""Half a surrogate pair, which Pydantic does not write as JSON, is left out."""


def small(**fields):
    return sample("a", [5, 6, 7], **fields)


class Episode(pydantic.BaseModel):
    name: str
    first: StreamSample
    others: list[StreamSample] = pydantic.Field(default_factory=list)


@settings(max_examples=50)
@given(writable)
def test_a_sample_in_a_model_survives_every_way_of_writing_it(one):
    episode = Episode(name="a", first=one, others=[one])
    assert episode.first is one
    assert Episode.model_validate(episode.model_dump()) == episode
    assert Episode.model_validate(episode.model_dump(mode="json")) == episode
    again = Episode.model_validate_json(episode.model_dump_json())
    assert again == episode
    assert again.first.timestamp == one.timestamp


@given(samples())
def test_the_methods_of_a_model_are_those_of_the_sample_itself(one):
    assert list(one.model_dump()) == list(FIELDS)
    assert StreamSample.model_validate(one.model_dump()) == one
    assert one.model_dump(mode="json") == one.to_dict() == json.loads(one.model_dump_json())
    again = StreamSample.model_validate_json(one.model_dump_json())
    assert again == one
    assert again.timestamp == one.timestamp
    assert StreamSample.model_validate(one) is one


def test_a_dump_holds_arrays_and_members_or_plain_values():
    dumped = Episode(name="a", first=small()).model_dump()["first"]
    assert isinstance(dumped["input_ids"], np.ndarray)
    assert dumped["source"] is SampleSource.OFFLINE
    plain = Episode(name="a", first=small()).model_dump(mode="json")["first"]
    assert plain["input_ids"] == [5, 6, 7]
    assert type(plain["source"]) is str
    with pytest.raises(OptionError, match="mode must be one of python, json"):
        small().model_dump(mode="yaml")


def test_a_model_may_leave_fields_of_the_sample_out():
    episode = Episode(name="a", first=small(reward=0.5))
    assert set(episode.model_dump(include={"first": {"reward"}})["first"]) == {"reward"}
    assert "timestamp" not in episode.model_dump(exclude={"first": {"timestamp"}})["first"]
    assert "success" not in episode.model_dump(mode="json", exclude_none=True)["first"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_mask": [1]}, "loss_mask has 1 entries for 3 tokens"),
        ({"difficulty": 2}, "between 0 and 1"),
        ({"rewards": 1.0}, 'Did you mean "reward"'),
        ({"input_ids": None}, "input_ids"),
        ({"source": "disk"}, "source must be one of"),
    ],
)
def test_what_is_no_sample_is_a_validation_error_with_its_place_in_a_model_and_a_data_error_elsewhere(change, message):
    values = {**small().to_dict(), **change}
    with pytest.raises(pydantic.ValidationError, match=message) as raised:
        Episode.model_validate({"name": "a", "first": small(), "others": [small(), values]})
    (error,) = raised.value.errors()
    assert error["loc"] == ("others", 1)
    assert error["type"] == "value_error"
    assert isinstance(error["ctx"]["error"], DataError)
    with pytest.raises(DataError, match=message):
        StreamSample.model_validate(values)


def test_only_mappings_and_samples_are_validated():
    for wrong in (7, [1, 2], "a", None):
        with pytest.raises(DataError, match="made of a mapping"):
            StreamSample.model_validate(wrong)
        with pytest.raises(pydantic.ValidationError):
            Episode(name="a", first=wrong)
    with pytest.raises(DataError, match="not JSON"):
        StreamSample.model_validate_json("{")


def test_strict_validation_takes_samples_and_json_only():
    adapter = pydantic.TypeAdapter(StreamSample)
    one = small()
    assert adapter.validate_python(one, strict=True) is one
    assert adapter.validate_json(one.model_dump_json(), strict=True) == one
    with pytest.raises(pydantic.ValidationError, match="instance of StreamSample"):
        adapter.validate_python(one.to_dict(), strict=True)


def test_the_json_schema_has_every_field_and_says_what_is_required():
    schema = pydantic.TypeAdapter(StreamSample).json_schema()
    assert list(schema["properties"]) == list(FIELDS)
    assert schema["required"] == ["sample_id", "input_ids", "loss_mask"]
    assert schema["title"] == "StreamSample"
    assert schema["additionalProperties"] is False
    for name, field in schema["properties"].items():
        if name in ("sample_id", "input_ids", "loss_mask", "timestamp"):
            assert "default" not in field
        else:
            plain = StreamSample(sample_id=0, input_ids=[], loss_mask=[]).to_dict()
            assert field["default"] == plain[name]
    assert Episode.model_json_schema()["properties"]["name"]["type"] == "string"
    assert Episode.model_json_schema(mode="serialization")["properties"]["name"] == {"title": "Name", "type": "string"}


def test_samples_need_no_pydantic():
    code = """
import sys
sys.modules["pydantic"] = sys.modules["pydantic_core"] = None
from brim.stream.sample import StreamSample
sample = StreamSample(sample_id="a", input_ids=[1], loss_mask=[1])
assert StreamSample.model_validate_json(sample.model_dump_json()) == StreamSample.model_validate(sample.model_dump())
"""
    subprocess.run([sys.executable, "-c", code], check=True)
