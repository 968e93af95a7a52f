"""The Pydantic schema of `StreamSample`.

Values are checked by `StreamSample` alone, so a sample is the same with and without Pydantic; the fields below describe
it in JSON schemas. This module is the only one that imports Pydantic's core, and only Pydantic causes its import.
"""

from typing import Any

from pydantic_core import core_schema
from pydantic_core.core_schema import CoreSchema

from brim.core.options import LONGEST
from brim.stream.sample import FIELDS, EpisodeStatus, SampleSource, StreamSample


def core_schema_of(cls: type[StreamSample]) -> CoreSchema:
    """Validate by `model_validate` and serialize by `model_dump`.

    Strict validation of Python values takes samples only.
    """
    checked = core_schema.no_info_plain_validator_function(cls.model_validate)
    strict = core_schema.json_or_python_schema(json_schema=checked, python_schema=core_schema.is_instance_schema(cls))
    serialization = core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True)
    return core_schema.lax_or_strict_schema(lax_schema=checked, strict_schema=strict, serialization=serialization)


def _dump(sample: StreamSample, info: core_schema.SerializationInfo) -> dict[str, Any]:
    """The fields of a sample, without those that the options of `model_dump` leave out."""
    values = sample.model_dump(mode="json" if info.mode == "json" else "python")
    if info.include is not None:
        values = {name: value for name, value in values.items() if name in info.include}
    if info.exclude is not None:
        values = {name: value for name, value in values.items() if name not in info.exclude}
    if info.exclude_none:
        values = {name: value for name, value in values.items() if value is not None}
    return values


def json_schema_of(cls: type[StreamSample], handler: Any) -> dict[str, Any]:
    """The fields of a sample as an object; `handler` is Pydantic's."""
    return {**handler(core_schema.typed_dict_schema(_fields(), extra_behavior="forbid")), "title": cls.__name__}


def _fields() -> dict[str, core_schema.TypedDictField]:
    count = core_schema.int_schema(ge=0)
    number = core_schema.float_schema()
    text = core_schema.str_schema()
    numbers = core_schema.list_schema(core_schema.int_schema(ge=0, le=LONGEST))
    required: dict[str, CoreSchema] = {
        "sample_id": core_schema.union_schema([text, core_schema.int_schema()]),
        "input_ids": numbers,
        "loss_mask": core_schema.list_schema(core_schema.int_schema(ge=0, le=1)),
    }
    defaults: dict[str, tuple[CoreSchema, Any]] = {
        "dataset_id": (text, ""),
        "source": (core_schema.literal_schema([member.value for member in SampleSource]), SampleSource.OFFLINE.value),
        "replay_count": (count, 0),
        "priority": (core_schema.float_schema(ge=0), 1.0),
    }
    optional: dict[str, CoreSchema] = {
        "segment_ids": numbers,
        "episode_id": text,
        "episode_status": core_schema.literal_schema([member.value for member in EpisodeStatus]),
        "step_index": count,
        "total_steps": count,
        "reward": number,
        "difficulty": core_schema.float_schema(ge=0, le=1),
        "success": core_schema.bool_schema(),
        "policy_version": count,
    }
    schemas: dict[str, CoreSchema] = {
        **required,
        "timestamp": number,  # the default is the current time
        **{name: core_schema.with_default_schema(schema, default=value) for name, (schema, value) in defaults.items()},
        **{
            name: core_schema.with_default_schema(core_schema.nullable_schema(schema), default=None)
            for name, schema in optional.items()
        },
    }
    return {name: core_schema.typed_dict_field(schemas[name], required=name in required) for name in FIELDS}
