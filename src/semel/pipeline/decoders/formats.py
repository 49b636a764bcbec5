"""The payload formats by name, and `make_decoder`."""

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa

from semel.extras import MissingExtra
from semel.pipeline.decoders.avro import make_avro_decoder
from semel.pipeline.decoders.cbor import CborDecoder, load_cbor
from semel.pipeline.decoders.fixed_layout import make_struct_decoder
from semel.pipeline.decoders.json_objects import JsonTextDecoder, make_json_decoder
from semel.pipeline.decoders.msgpack import MsgpackDecoder, load_msgpack
from semel.pipeline.decoders.options import check_option_names
from semel.pipeline.decoders.outcome import Decoded
from semel.pipeline.decoders.protobuf import make_protobuf_decoder
from semel.pipeline.decoders.text_fields import make_csv_decoder, make_number_decoder
from semel.pipeline.decoders.typed import check_schema
from semel.pipeline.errors import OptionError

FORMATS: Final = (
    *("cbor", "msgpack", "avro", "protobuf", "struct", "json", "json_text", "csv", "number"),
)

PayloadDecoder = Callable[[pa.Array], Decoded]


def make_decoder(name: str, schema: pa.Schema, options: Mapping[str, object]) -> PayloadDecoder:
    """The decoder of a format into structs of `schema`, for arrays of binary.

    It consists of texts and bytes: it can be pickled, and files that options name are read here
    and never again. Raises OptionError for a wrong name, schema or option, and if a package is
    missing.
    """
    if name == "json":
        check_option_names(name, options, ())
        return make_json_decoder(schema)
    if name == "csv":
        return make_csv_decoder(schema, options)
    if name == "number":
        return make_number_decoder(schema, options)
    check_schema(schema)
    try:
        if name == "json_text":
            check_option_names(name, options, ())
            return JsonTextDecoder(schema)
        if name == "cbor":
            check_option_names(name, options, ())
            load_cbor()
            return CborDecoder(schema)
        if name == "msgpack":
            check_option_names(name, options, ())
            load_msgpack()
            return MsgpackDecoder(schema)
        if name == "avro":
            return make_avro_decoder(schema, options)
        if name == "protobuf":
            return make_protobuf_decoder(schema, options)
        if name == "struct":
            return make_struct_decoder(schema, options)
    except MissingExtra as missing:
        raise OptionError(str(missing)) from None
    raise OptionError(f"there is no decoder {name!r}: choose {', '.join(FORMATS)}")
