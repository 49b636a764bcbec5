"""Connects the core's proofs to the threads that run them."""

import asyncio

from semel.broker.access.configured_authority import ConfiguredAuthority
from semel.broker.access.failures import FailureRate
from semel.broker.access.users_settings import UsersSettings
from semel.broker.authority import Authority
from semel.broker.network.proof_pool import ProofPool


def new_proof_pool(
    loop: asyncio.AbstractEventLoop, authority: Authority, timeout: float
) -> ProofPool:
    """The threads for the proofs of this authority, which start with the first one.

    An Authority of a program has the bounds of [users] by default, and no limit of failures.
    """
    settings = UsersSettings()
    rate = FailureRate(0)
    if isinstance(authority, ConfiguredAuthority):
        settings = authority.settings
        rate = authority.rate
    return ProofPool(
        loop.call_soon_threadsafe,
        threads=settings.proof_threads,
        maximum_pending=settings.maximum_pending_proofs,
        timeout=timeout,
        rate=rate,
    )
