"""Payloads are decompressed up to a limit; damaged ones are problems."""

import gzip
import random

import pyarrow as pa
import pytest

from semel.pipeline.decoders.compression import CODECS, decompress
from semel.pipeline.errors import OptionError

RAW = b"temperature 21.5, humidity 40, " * 5


def compress(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def reason(payload: bytes, codec: str, limit: int = 1000) -> str:
    """Why a payload is refused, between two good ones that must not suffer."""
    good = compress(RAW, codec)
    payloads = pa.array([good, payload, None, good], type=pa.binary())
    values, problems = decompress(payloads, codec, limit)
    assert values.to_pylist() == [RAW, None, None, RAW]
    assert list(problems) == [1]
    return problems[1].reason


@pytest.mark.parametrize("codec", CODECS)
def test_what_was_compressed_comes_back(codec: str) -> None:
    raws = [RAW, b"", b"x" * 1000, random.Random(1).randbytes(1000), None]
    payloads = pa.array([None if raw is None else compress(raw, codec) for raw in raws])
    values, problems = decompress(payloads, codec, 1000)
    assert values.to_pylist() == raws
    assert values.type == pa.binary()
    assert not problems


@pytest.mark.parametrize("codec", CODECS)
def test_more_bytes_than_the_limit_are_a_problem(codec: str) -> None:
    assert reason(compress(b"x" * 1001, codec), codec) == (
        "the decompressed payload exceeds 1,000 bytes"
    )
    large = b"y" * 3_000_000
    values, problems = decompress(pa.array([compress(large, codec)]), codec, len(large))
    assert not problems
    assert values[0].as_py() == large


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_a_decompression_bomb_takes_little_memory(codec: str) -> None:
    bomb = compress(bytes(200_000_000), codec)
    before = pa.default_memory_pool().max_memory()
    assert "exceeds 1,000 bytes" in reason(bomb, codec)
    assert pa.default_memory_pool().max_memory() - before < 20_000_000


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_data_is_a_problem_at_every_byte(codec: str) -> None:
    whole = compress(RAW, codec)
    assert reason(b"", codec) == "the payload is empty"
    for size in range(1, len(whole)):
        assert "truncated" in reason(whole[:size], codec)


@pytest.mark.parametrize("codec", CODECS)
def test_trailing_bytes_are_a_problem(codec: str) -> None:
    whole = compress(RAW, codec)
    for extra in (b"x", bytes(1), bytes(20), b"garbage garbage garbage", whole[:-1]):
        assert codec in reason(whole + extra, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_several_members_are_joined(codec: str) -> None:
    whole = compress(b"one", codec) + compress(b"", codec) + compress(b"two", codec)
    values, problems = decompress(pa.array([whole]), codec, 6)
    assert values.to_pylist() == [b"onetwo"]
    assert not problems
    assert "exceeds 5 bytes" in decompress(pa.array([whole]), codec, 5)[1][0].reason


def test_gzip_of_another_program_is_accepted() -> None:
    values, problems = decompress(pa.array([gzip.compress(RAW)]), "gzip", 1000)
    assert values.to_pylist() == [RAW]
    assert not problems


@pytest.mark.parametrize("codec", CODECS)
def test_random_bytes_are_problems(codec: str) -> None:
    chance = random.Random(2)
    payloads = [chance.randbytes(chance.randrange(1, 60)) for _ in range(500)]
    start = compress(RAW, codec)[:7]
    payloads += [start + chance.randbytes(chance.randrange(60)) for _ in range(500)]
    values, problems = decompress(pa.array(payloads), codec, 1000)
    assert {i for i, value in enumerate(values.to_pylist()) if value is None} == set(problems)
    assert set(range(500)) <= set(problems)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(OptionError, match="no compression 'snappy': choose gzip, zstd, lz4"):
        decompress(pa.array([b"x"]), "snappy", 10)
    with pytest.raises(OptionError, match="at least 1, not 0"):
        decompress(pa.array([b"x"]), "gzip", 0)
