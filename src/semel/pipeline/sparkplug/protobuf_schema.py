"""The Protobuf schema of a Sparkplug B payload, built from tables of its fields.

Names, numbers and types are those of the Sparkplug specification 3.0. Edition 2023 gives every
field presence and checks that text is UTF-8: a payload with other text is not valid.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from semel.extras import need

PACKAGE: Final = "semel.sparkplug"
COMMAND: Final = "semel land sparkplug"
# The oneof with the value of a metric, property, parameter or element.
VALUE: Final = "value"

# Of each message: its fields as (number, type), where a type in capitals is another message here,
# `*` means repeated, and `=` means part of the oneof `value`.
_MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    "Payload": {
        "timestamp": (1, "uint64"),
        "metrics": (2, "*Metric"),
        "seq": (3, "uint64"),
        "uuid": (4, "string"),
        "body": (5, "bytes"),
    },
    "Metric": {
        "name": (1, "string"),
        "alias": (2, "uint64"),
        "timestamp": (3, "uint64"),
        "datatype": (4, "uint32"),
        "is_historical": (5, "bool"),
        "is_transient": (6, "bool"),
        "is_null": (7, "bool"),
        "metadata": (8, "MetaData"),
        "properties": (9, "PropertySet"),
        "int_value": (10, "=uint32"),
        "long_value": (11, "=uint64"),
        "float_value": (12, "=float"),
        "double_value": (13, "=double"),
        "boolean_value": (14, "=bool"),
        "string_value": (15, "=string"),
        "bytes_value": (16, "=bytes"),
        "dataset_value": (17, "=DataSet"),
        "template_value": (18, "=Template"),
    },
    "MetaData": {
        "is_multi_part": (1, "bool"),
        "content_type": (2, "string"),
        "size": (3, "uint64"),
        "seq": (4, "uint64"),
        "file_name": (5, "string"),
        "file_type": (6, "string"),
        "md5": (7, "string"),
        "description": (8, "string"),
    },
    "PropertySet": {"keys": (1, "*string"), "values": (2, "*PropertyValue")},
    "PropertySetList": {"propertyset": (1, "*PropertySet")},
    "PropertyValue": {
        "type": (1, "uint32"),
        "is_null": (2, "bool"),
        "int_value": (3, "=uint32"),
        "long_value": (4, "=uint64"),
        "float_value": (5, "=float"),
        "double_value": (6, "=double"),
        "boolean_value": (7, "=bool"),
        "string_value": (8, "=string"),
        "propertyset_value": (9, "=PropertySet"),
        "propertysets_value": (10, "=PropertySetList"),
    },
    "DataSet": {
        "num_of_columns": (1, "uint64"),
        "columns": (2, "*string"),
        "types": (3, "*uint32"),
        "rows": (4, "*Row"),
    },
    "Row": {"elements": (1, "*DataSetValue")},
    "DataSetValue": {
        "int_value": (1, "=uint32"),
        "long_value": (2, "=uint64"),
        "float_value": (3, "=float"),
        "double_value": (4, "=double"),
        "boolean_value": (5, "=bool"),
        "string_value": (6, "=string"),
    },
    "Template": {
        "version": (1, "string"),
        "metrics": (2, "*Metric"),
        "parameters": (3, "*Parameter"),
        "template_ref": (4, "string"),
        "is_definition": (5, "bool"),
    },
    "Parameter": {
        "name": (1, "string"),
        "type": (2, "uint32"),
        "int_value": (3, "=uint32"),
        "long_value": (4, "=uint64"),
        "float_value": (5, "=float"),
        "double_value": (6, "=double"),
        "boolean_value": (7, "=bool"),
        "string_value": (8, "=string"),
    },
}


@cache
def payload_class() -> Any:
    """The class of payloads, made once per process. Raises MissingExtra without protobuf."""
    descriptors = need("google.protobuf.descriptor_pb2", extra="decoders", by=COMMAND)
    pools = need("google.protobuf.descriptor_pool", extra="decoders", by=COMMAND)
    factory = need("google.protobuf.message_factory", extra="decoders", by=COMMAND)
    file = descriptors.FileDescriptorProto(
        name="semel/sparkplug.proto",
        package=PACKAGE,
        syntax="editions",
        edition=descriptors.EDITION_2023,
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for each, (number, kind) in fields.items():
            field = message.field.add(name=each, number=number)
            field.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
            if kind.startswith("="):
                if not message.oneof_decl:
                    message.oneof_decl.add(name=VALUE)
                field.oneof_index = 0
            plain = kind.lstrip("*=")
            if plain in _MESSAGES:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".{PACKAGE}.{plain}"
            else:
                field.type = getattr(field, f"TYPE_{plain.upper()}")
    pool = pools.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Payload"))


@cache
def decode_error() -> type[Exception]:
    """The exception for bytes that are no payload."""
    found: type[Exception] = need(
        "google.protobuf.message", extra="decoders", by=COMMAND
    ).DecodeError
    return found
