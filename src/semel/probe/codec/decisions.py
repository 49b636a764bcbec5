"""What an answer of a codec means for its case: the verdict, and why, in a sentence."""

from dataclasses import dataclass

from semel.mqtt import Violation, decode
from semel.probe.codec.cases import CodecCase, blamed_statements
from semel.probe.codec.process import (
    BYTES,
    CANNOT,
    CRASHED,
    INCOMPLETE,
    PACKET,
    REFUSED,
    SILENT,
    UNCLEAR,
    AdapterAnswer,
)
from semel.probe.packet_form import (
    ORDER_IS_LOST,
    BadForm,
    describe_packet,
    differences,
    has_discouraged_character,
    has_topic_alias,
    has_unusual_client_id,
    shorten,
)
from semel.probe.verdicts import (
    ARGUABLE,
    DECODE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    SATISFIED,
    VIOLATED,
)


@dataclass(frozen=True)
class CodecDecision:
    """The verdict of one answer. `statements` are those of the case, or what the bytes break."""

    verdict: str
    found: str
    statements: tuple[str, ...]
    # The codec refused something wrong, which counts if it does not refuse what is right as well.
    needs_control: bool = False


def decide(case: CodecCase, answer: AdapterAnswer) -> CodecDecision:
    """The verdict of an answer, without the control."""
    if answer.kind == CANNOT:
        return _decision(case, NOT_APPLICABLE, f"the adapter cannot: {answer.text}")
    if answer.kind == UNCLEAR or answer.kind == (BYTES if case.path == DECODE else PACKET):
        text = answer.text or f"the answer to {case.path} is of the wrong kind ({answer.kind})"
        return _decision(case, INCONCLUSIVE, text)
    try:
        if case.path == DECODE:
            return _decide_decoded(case, answer)
        return _decide_encoded(case, answer)
    except BadForm as problem:
        return _decision(case, INCONCLUSIVE, f"the answer is not understood: {problem}")


def _decision(
    case: CodecCase, verdict: str, found: str, *, needs_control: bool = False
) -> CodecDecision:
    return CodecDecision(verdict, found, case.statements, needs_control)


def _failure(answer: AdapterAnswer, path: str) -> str:
    if answer.kind == SILENT:
        return f"the {path}r did not come to an end: {answer.text}"
    return f"the {path}r crashed: {answer.text}"


def _decide_decoded(case: CodecCase, answer: AdapterAnswer) -> CodecDecision:
    if answer.kind in (CRASHED, SILENT):
        return _decision(case, VIOLATED, _failure(answer, DECODE))
    if answer.kind == INCOMPLETE and not _has_whole_length(case.data):
        reading = "a decoder may wait for the fifth byte of the length before it refuses it"
        return _decision(case, ARGUABLE, f"the decoder waits for more bytes; {reading}")
    if answer.kind == INCOMPLETE:
        return _decision(case, VIOLATED, "the decoder waits for more bytes of a complete packet")
    if not case.is_right:
        if answer.kind == REFUSED:
            return _decision(case, SATISFIED, f"refused: {answer.text}", needs_control=True)
        seen = f"the decoder accepts it as {shorten(answer.packet)}"
        if case.reading:
            return _decision(case, ARGUABLE, f"{seen}; {case.reading}")
        return _decision(case, VIOLATED, seen)
    if answer.kind == REFUSED:
        return _refused_right(case, answer)
    if answer.taken not in (-1, len(case.data)):
        taken = f"the decoder takes {answer.taken} of {len(case.data)} bytes"
        return _decision(case, VIOLATED, taken)
    unlike = differences(case.form, answer.packet)
    if unlike and all(ORDER_IS_LOST in each for each in unlike):
        reading = "the order binds a server that forwards them, and this library cannot keep it"
        return _decision(case, ARGUABLE, f"{'; '.join(unlike)}; {reading}")
    if unlike:
        return _decision(case, VIOLATED, f"the decoder reads other values: {'; '.join(unlike)}")
    return _decision(case, SATISFIED, "read as what it means")


def _has_whole_length(data: bytes) -> bool:
    """Whether the Remaining Length ends within the bytes, or is too long already."""
    return len(data) > 5 or any(byte < 128 for byte in data[1:])


def _refused_right(case: CodecCase, answer: AdapterAnswer) -> CodecDecision:
    """A refusal of something right; some of it a peer may refuse."""
    seen = f"the {case.path}r refuses it: {answer.text or 'without a reason'}"
    if has_discouraged_character(case.form):
        reading = "control characters should not be sent, and a receiver may refuse them"
        return _decision(case, ARGUABLE, f"{seen}; {reading}")
    if has_unusual_client_id(case.form):
        reading = (
            "a server need not allow a ClientId that is empty, longer than 23 bytes, or has other "
            "characters than letters and digits"
        )
        return _decision(case, ARGUABLE, f"{seen}; {reading}")
    if has_topic_alias(case.form):
        reading = "a Topic Alias needs an agreement on the connection, of which there is none here"
        return _decision(case, ARGUABLE, f"{seen}; {reading}")
    return _decision(case, VIOLATED, seen)


def _decide_encoded(case: CodecCase, answer: AdapterAnswer) -> CodecDecision:
    wrote_nothing = answer.kind == BYTES and not answer.data
    if answer.kind in (CRASHED, SILENT):
        if case.is_right:
            return _decision(case, VIOLATED, _failure(answer, case.path))
        # It wrote nothing wrong, and it did not refuse either.
        return _decision(case, INCONCLUSIVE, _failure(answer, case.path))
    if answer.kind in (REFUSED, INCOMPLETE) or wrote_nothing:
        if case.is_right:
            return _refused_right(case, answer)
        found = f"refused: {answer.text or 'nothing is written'}"
        return _decision(case, SATISFIED, found, needs_control=True)
    try:
        decoded = decode(answer.data, case.level)
    except Violation as violation:
        return _wrote_wrong(case, answer.data, violation)
    problem = ""
    if decoded is None:
        problem = "the encoder writes a packet that ends too early"
    elif decoded[1] != len(answer.data):
        surplus = len(answer.data) - decoded[1]
        problem = f"the encoder writes {surplus} bytes more than its Remaining Length says"
    elif case.is_right:
        unlike = differences(case.form, describe_packet(decoded[0]))
        if unlike:
            problem = f"the encoder writes other values: {'; '.join(unlike)}"
    if problem:
        return _decision(case, VIOLATED, problem)
    if case.is_right:
        return _decision(case, SATISFIED, "written as what it means")
    assert decoded is not None
    instead = shorten(describe_packet(decoded[0]))
    return _decision(case, SATISFIED, f"the encoder writes a right packet instead: {instead}")


def _wrote_wrong(case: CodecCase, data: bytes, violation: Violation) -> CodecDecision:
    sentence = violation.rule.sentence.removesuffix(".")
    seen = f"the encoder writes bytes that break {violation.rule.name}: {sentence}"
    if case.is_right:
        statements = case.statements
        # Where the bytes do not fit their lengths, what was to be written is written wrongly.
        if violation.rule.name not in ("FIELD_WITHIN_PACKET", "NO_SURPLUS_BYTES"):
            statements = blamed_statements(violation.rule, data, case.version) or case.statements
        return CodecDecision(VIOLATED, seen, statements)
    if case.reading:
        return _decision(case, ARGUABLE, f"{seen}; {case.reading}")
    return _decision(case, VIOLATED, seen)
