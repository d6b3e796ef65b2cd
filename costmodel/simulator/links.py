"""Linked lists of requests: an engine's queue; a lane's running requests by admission, its prompts; compiled."""

from __future__ import annotations

from .compiled import compile_loop
from .state import RESERVED, Group, Lane, World


@compile_loop
def queue_back(w: World, group: Group, r: int) -> None:
    """Put r last in the queue."""
    w.requests[r].next = -1
    if group.wait_tail < 0:
        group.wait_head = r
    else:
        w.requests[group.wait_tail].next = r
    group.wait_tail = r


@compile_loop
def queue_front(w: World, group: Group, r: int) -> None:
    """Put r first in the queue, behind requests whose blocks are reserved."""
    before, after = -1, group.wait_head
    while after >= 0 and w.requests[after].gated == RESERVED:
        before = after
        after = w.requests[after].next
    w.requests[r].next = after
    if before < 0:
        group.wait_head = r
    else:
        w.requests[before].next = r
    if after < 0:
        group.wait_tail = r


@compile_loop
def queue_pop(w: World, group: Group, lane: Lane) -> None:
    """The lane takes the first request off its engine's queue, and keeps it until it ends or is preempted."""
    request = w.requests[group.wait_head]
    request.lane = lane.index
    group.wait_head = request.next
    if group.wait_head < 0:
        group.wait_tail = -1


@compile_loop
def running_insert(w: World, lane: Lane, r: int, before: int) -> None:
    """Put r among the running requests, before the request `before` or, if that is -1, last."""
    request = w.requests[r]
    after = lane.tail if before < 0 else w.requests[before].previous
    request.previous = after
    request.next = before
    if after < 0:
        lane.head = r
    else:
        w.requests[after].next = r
    if before < 0:
        lane.tail = r
    else:
        w.requests[before].previous = r


@compile_loop
def running_remove(w: World, lane: Lane, r: int) -> None:
    """Take r out of the running requests."""
    before, after = w.requests[r].previous, w.requests[r].next
    if before < 0:
        lane.head = after
    else:
        w.requests[before].next = after
    if after < 0:
        lane.tail = before
    else:
        w.requests[after].previous = before


@compile_loop
def prompt_append(w: World, lane: Lane, r: int) -> None:
    """Put r last among the unfinished prompts."""
    w.requests[r].next_prompt = -1
    if lane.prompt_tail < 0:
        lane.prompt_head = r
    else:
        w.requests[lane.prompt_tail].next_prompt = r
    lane.prompt_tail = r
    lane.prompts += 1


@compile_loop
def prompt_remove(w: World, lane: Lane, r: int) -> None:
    """Take r out of the unfinished prompts."""
    before, here = -1, lane.prompt_head
    while here != r:
        before = here
        here = w.requests[here].next_prompt
    after = w.requests[r].next_prompt
    if before < 0:
        lane.prompt_head = after
    else:
        w.requests[before].next_prompt = after
    if after < 0:
        lane.prompt_tail = before
    lane.prompts -= 1
