"""Thousands of sockets without a CONNECT, at a broker in a process of its own."""

import socket
from contextlib import ExitStack

from semel.mqtt import (
    Connect,
    encode,
)
from tests.broker.broker_process import PATIENCE, Process
from tests.broker.by_hand import healthy_pair, link


def test_thousands_of_silent_sockets_do_not_lock_clients_out() -> None:
    """10,500 of them did, with 10,000 connections"""
    arguments = ("--maximum-connections", "20", "--maximum-unconnected", "50")
    with (
        Process(*arguments) as broker,
        healthy_pair(broker.address) as pair,
        ExitStack() as sockets,
    ):
        silent = []
        for _ in range(200):
            made = socket.create_connection(broker.address, PATIENCE)
            silent.append(sockets.enter_context(made))
        pair.exchange()
        # From the same address: it has to be quicker than 50 others, which it is.
        with link(broker.address, "late") as late:
            late.ping()
        closed = 0
        for each in silent[:150]:
            assert each.recv(1) == b""
            closed += 1
        assert closed == 150
        # The next is not one of them.
        silent[-1].sendall(encode(Connect("waited")))
        assert silent[-1].recv(2)[0] == 0x20
