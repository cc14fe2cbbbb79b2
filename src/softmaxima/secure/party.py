"""One party of an evaluation, a process of its own: its order comes on standard input, one message goes to standard output.

Where the input ends the process that began it is gone, and it goes too.

The order has its scores and its ends of connections to the others; the message is what was opened, or which parties are missing.
A party that fails by itself gives none, and an exit status.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from softmaxima.secure.fixed_point import FixedPoint
from softmaxima.secure.functions import FUNCTIONS
from softmaxima.secure.library import loaded

BYTES = 4  # of the clock


def shared(mpc: Any, own: list[float], counts: list[int], format: FixedPoint) -> Any:
    """The scores of all parties, as shares, in their order."""
    rows = []
    for party, count in enumerate(counts):
        scores = np.array(own) if party == mpc.pid else np.zeros(count)
        if count:
            rows.append(mpc.input(format.numbers.array(scores, integral=False), senders=party))
    return rows[0] if len(rows) == 1 else mpc.np_concatenate(rows)


class Messages:
    """What goes between parties: how many rounds it takes, and who went away before the end.

    longest: the longest chain of messages of which each was sent after the one before had come, by a logical clock that goes with
        them.
    """

    def __init__(self, mpc: Any, ends: dict[int, int], latency: float) -> None:
        from mpyc.asyncoro import MessageExchanger

        self.longest, self.messages = 0, 0
        self.over, self.lost = False, set()
        self.ends = {end: other for other, end in ends.items()}
        send, receive, received = MessageExchanger.send, MessageExchanger.receive, MessageExchanger.data_received

        def sent(exchanger: Any, pc: int, payload: bytes) -> None:
            self.messages += 1
            send(exchanger, pc, self.longest.to_bytes(BYTES, "little") + payload)

        def awaited(exchanger: Any, pc: int) -> Any:
            payload = receive(exchanger, pc)
            if isinstance(payload, bytes):
                return self.come(payload)
            came = mpc._loop.create_future()
            payload.add_done_callback(lambda message: came.set_result(self.come(message.result())))
            return came

        exchanger: Any = MessageExchanger
        exchanger.send, exchanger.receive = sent, awaited
        if latency:
            exchanger.data_received = lambda self, data: mpc._loop.call_later(latency, received, self, data)
        ended = MessageExchanger.connection_lost

        def lost(exchanger: Any, error: Exception | None) -> None:
            if self.over:
                ended(exchanger, None)
            else:
                self.lost.add(self.ends[exchanger.transport.get_extra_info("socket").fileno()])
                mpc._loop.stop()

        exchanger.connection_lost = lost

    def come(self, payload: bytes) -> bytes:
        """What was sent, now that it is here."""
        self.longest = max(self.longest, int.from_bytes(payload[:BYTES], "little") + 1)
        return payload[BYTES:]


async def opened_by_all(mpc: Any, order: dict[str, Any], messages: Messages) -> dict[str, Any]:
    """Share, compute and open with the others."""
    format = FixedPoint(sum(order["counts"]), tuple(order["bounds"]), order["bits"])
    await mpc.start()
    begun = time.perf_counter()
    x = shared(mpc, order["scores"], order["counts"], format)
    opened = await mpc.output(FUNCTIONS[order["what"]](x, format))
    seconds = time.perf_counter() - begun
    sent = sum(peer.protocol.nbytes_sent for peer in mpc.parties if peer.pid != mpc.pid) - BYTES * messages.messages
    taken, messages.over = messages.longest, True
    await mpc.shutdown()
    return {"value": np.asarray(opened).tolist(), "bytes": sent, "seconds": seconds, "rounds": taken}


def missing(mpc: Any, messages: Messages) -> list[int]:
    """Who went away; without any, those who did not come, and those of whom a message is awaited."""
    others = [peer for peer in mpc.parties if peer.pid != mpc.pid]
    awaited = [
        peer.pid
        for peer in others
        if peer.protocol is None or any(isinstance(message, asyncio.Future) for message in peer.protocol.buffers.values())
    ]
    return sorted(messages.lost) or awaited


def connect(mpc: Any, ends: dict[int, int]) -> None:
    """Let mpyc take the ends that there are, where it would listen at an address and look for others."""
    begin, parties = mpc._loop.create_connection, {peer.port: peer.pid for peer in mpc.parties}

    async def to_later(factory: Callable[[], Any], host: str, port: int, **_: Any) -> None:
        await begin(factory, sock=socket.socket(fileno=ends[parties[port]]))

    async def from_earlier(factory: Callable[[], Any], **_: Any) -> Any:
        for other in range(mpc.pid):
            await begin(factory, sock=socket.socket(fileno=ends[other]))
        return SimpleNamespace(close=lambda: None)  # nobody listens

    mpc._loop.create_connection, mpc._loop.create_server = to_later, from_earlier


def end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def take_part(order: dict[str, Any]) -> None:
    """Begun by `evaluation.py`, which reads the order and where to import this from."""
    threading.Thread(target=end_with_input, daemon=True).start()
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)  # mpyc prints there
        mpc = loaded()
        ends = {int(other): end for other, end in order["ends"].items()}
        messages = Messages(mpc, ends, order["latency"])
        connect(mpc, ends)
        try:
            found = mpc.run(asyncio.wait_for(opened_by_all(mpc, order, messages), order["timeout"]))
        except (TimeoutError, RuntimeError):  # the latter of a loop that was stopped
            if not messages.lost and isinstance(sys.exception(), RuntimeError):
                raise
            found = {"missing": missing(mpc, messages)}
        told.write(json.dumps(found) + "\n")
