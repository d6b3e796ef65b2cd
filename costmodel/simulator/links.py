"""Linked lists of requests: a lane's queue, its running requests by admission, its unfinished prompts; compiled."""

from __future__ import annotations

from .compiled import compile_loop
from .state import Lane, World


@compile_loop
def queue_back(w: World, lane: Lane, r: int) -> None:
    """Put r last in the queue."""
    w.requests[r].next = -1
    if lane.wait_tail < 0:
        lane.wait_head = r
    else:
        w.requests[lane.wait_tail].next = r
    lane.wait_tail = r


@compile_loop
def queue_front(w: World, lane: Lane, r: int) -> None:
    """Put r first in the queue."""
    w.requests[r].next = lane.wait_head
    lane.wait_head = r
    if lane.wait_tail < 0:
        lane.wait_tail = r


@compile_loop
def queue_pop(w: World, lane: Lane) -> None:
    """Take the first request off the queue."""
    lane.wait_head = w.requests[lane.wait_head].next
    if lane.wait_head < 0:
        lane.wait_tail = -1


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
