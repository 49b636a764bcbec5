"""Several layers behave as one."""

import pytest

from semel.broker.network.layer import LayerFailed
from semel.broker.network.layer_stack import LayerStack
from tests.broker.layers_by_hand import Shift


def two(*, works: bool = False) -> tuple[LayerStack, Shift, Shift]:
    outer, inner = Shift(b"|", works=works), Shift(b"+")
    return LayerStack([outer, inner]), outer, inner


def established() -> tuple[LayerStack, Shift, Shift]:
    stack, outer, inner = two()
    assert stack.receive(b"|hello|+hello") == b""
    assert stack.take_output() == b"|welcome|+welcome"
    return stack, outer, inner


def test_bytes_pass_through_all_layers_in_order() -> None:
    stack, _, _ = established()
    assert stack.is_established
    assert stack.receive(b"|+one|+two") == b"onetwo"
    assert stack.send(b"three") == b"|+three"
    assert stack.take_output() == b""


def test_it_is_established_when_the_last_layer_is() -> None:
    stack, outer, inner = two()
    assert stack.receive(b"|hello") == b""
    assert (outer.is_established, inner.is_established, stack.is_established) == (1, 0, 0)
    # The outer layer has answered; the inner one has nothing to say yet.
    assert stack.take_output() == b"|welcome"
    assert stack.receive(b"|+hello|+data") == b"data"
    assert stack.is_established
    assert stack.take_output() == b"|+welcome"


def test_without_layers_bytes_stay_as_they_are() -> None:
    stack = LayerStack([])
    assert stack.is_established
    assert stack.receive(b"data") == stack.send(b"data") == b"data"
    assert stack.close() == stack.take_output() == b""


def test_work_continues_at_the_layer_that_has_worked() -> None:
    stack, outer, inner = two(works=True)
    assert stack.receive(b"|hello|+hello|+data") == b""
    found = [stack.has_work]
    stack.work()
    assert (outer.steps, inner.steps) == (1, 0)
    assert [*found, stack.has_work] == [True, False]
    assert stack.resume() == b"data"
    assert stack.is_established
    # Without work there is nothing to do.
    stack.work()
    assert (outer.steps, inner.steps) == (1, 0)


def test_an_end_of_any_layer_is_the_end() -> None:
    stack, _, _ = established()
    assert stack.receive(b"|+last|+bye") == b"last"
    assert stack.is_closed
    assert stack.take_output() == b"|+bye"
    stack, _, _ = established()
    assert stack.receive(b"|+last|bye") == b"last"
    assert stack.is_closed
    assert stack.take_output() == b"|bye"


def test_a_failure_keeps_what_arrived_before_it() -> None:
    stack, _, _ = established()
    with pytest.raises(LayerFailed, match="a bad piece") as caught:
        stack.receive(b"|+one|bad")
    assert caught.value.received == b"one"
    stack, _, _ = established()
    with pytest.raises(LayerFailed, match="a bad piece") as caught:
        stack.receive(b"|+one|+bad")
    assert caught.value.received == b"one"


def test_a_failure_in_the_handshake_still_has_an_answer() -> None:
    stack, _, _ = two()
    with pytest.raises(LayerFailed, match="no hello") as caught:
        stack.receive(b"|hello|what")
    assert caught.value.received == b""
    # What the inner layer answers goes through the outer one.
    assert stack.take_output() == b"|welcome|+refused"


def test_output_of_an_inner_layer_is_not_sent_before_the_outer_one_is_established() -> None:
    stack, outer, inner = two()
    inner._output = b"early"
    assert stack.take_output() == b""
    assert outer.take_output() == b""


@pytest.mark.parametrize(("is_shutdown", "word"), [(False, b"close"), (True, b"shutdown")])
def test_closing_ends_the_innermost_layer_first(is_shutdown: bool, word: bytes) -> None:
    stack, _, _ = established()
    assert stack.close(is_shutdown=is_shutdown) == b"|+" + word + b"|" + word


def test_closing_before_the_handshakes_are_complete_ends_those_that_are() -> None:
    stack, _, _ = two()
    stack.receive(b"|hello")
    stack.take_output()
    assert stack.close() == b"|close"
    assert two()[0].close() == b""
