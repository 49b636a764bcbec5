"""Shrinks a failing schedule to a short one that fails in the same way.

Actions are removed, first many at a time, then one by one, as long as the rest still fails with the
same kind of message. The number of attempts is limited, not the time, so the result is
reproducible.
"""

import re
from typing import Final

from tests.simulation.clock import Broken
from tests.simulation.final_checks import check
from tests.simulation.finishing import play
from tests.simulation.schedule import Schedule
from tests.simulation.variants import FAITHFUL, Variant
from tests.simulation.world import World

ATTEMPTS: Final = 1_500


def failure_of(schedule: Schedule, variant: Variant = FAITHFUL) -> Exception | None:
    """The exception of a failing schedule; None if it passes."""
    try:
        world = World(schedule.plan, variant=variant)
        play(world, schedule.actions)
        check(world)
    except Exception as problem:
        return problem
    return None


def kind_of(problem: Exception) -> str:
    """The kind of a failure: its message without numbers and names."""
    words = re.sub(r"b'[^']*'|\b[psvw]\d+\b|\d+|\{.*\}|\[.*\]", "…", str(problem))
    return f"{type(problem).__name__}: {words[:60]}"


def traced(schedule: Schedule, variant: Variant = FAITHFUL) -> tuple[list[str], Exception | None]:
    """The trace of a schedule, and its failure, if any."""
    world = World(schedule.plan, variant=variant, trace=True)
    assert world.trace is not None
    try:
        play(world, schedule.actions)
        check(world)
    except Exception as problem:
        return world.trace, problem
    return world.trace, None


def shrunk(schedule: Schedule, variant: Variant = FAITHFUL) -> Schedule:
    """The shortest schedule found that fails in the same way. Raises ValueError if none fails."""
    problem = failure_of(schedule, variant)
    if problem is None:
        raise ValueError("this schedule does not fail")
    kind = kind_of(problem)
    plan, actions = schedule
    attempts = 0
    size = len(actions)
    while size:
        at = 0
        removed = False
        while at < len(actions) and attempts < ATTEMPTS:
            attempts += 1
            fewer = actions[:at] + actions[at + size :]
            found = failure_of(Schedule(plan, fewer), variant)
            if found is not None and kind_of(found) == kind:
                actions = fewer
                removed = True
            else:
                at += size
        if not removed or size > 1:
            size //= 2
    return Schedule(plan, actions)


def story(schedule: Schedule, variant: Variant = FAITHFUL) -> str:
    """The plan, the trace and the failure of a schedule as text."""
    lines, problem = traced(schedule, variant)
    plan = schedule.plan
    head = [f"seed {plan.seed}, {len(schedule.actions)} actions"]
    for part in plan.parts:
        ways = [way for way in ("lazy", "slow", "thrifty", "eager") if getattr(part, way)]
        head.append(
            f"  {part.name}: {part.role}, version {part.version}, expiry {part.expiry},"
            f" receive maximum {part.receive_maximum}, QoS {part.qos},"
            f" will delay {part.will_delay}, {' '.join(ways)}".rstrip(", ")
        )
    head.append(
        f"  streams {plan.streams}, inflight {plan.inflight_window}, outgoing"
        f" {plan.maximum_outgoing}, queued {plan.maximum_queued}, window {plan.queue_window}"
    )
    if problem is None:
        return "\n".join([*head, *lines, "nothing is wrong"])
    name = "" if isinstance(problem, Broken) else f"{type(problem).__name__}: "
    return "\n".join([*head, *lines, f"BROKEN: {name}{problem}"])
