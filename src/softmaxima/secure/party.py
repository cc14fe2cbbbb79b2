"""One party of an evaluation, a process of its own: its scores come on standard input, what was opened goes to standard output.

python -m softmaxima.secure.party -M3 -I0 -B11365
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
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


class Rounds:
    """The longest chain of messages of which each was sent after the one before had come: a logical clock that goes with them."""

    def __init__(self, mpc: Any, latency: float) -> None:
        from mpyc.asyncoro import MessageExchanger

        self.longest, self.messages = 0, 0
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

    def come(self, payload: bytes) -> bytes:
        """What was sent, now that it is here."""
        self.longest = max(self.longest, int.from_bytes(payload[:BYTES], "little") + 1)
        return payload[BYTES:]


async def take_part(mpc: Any, order: dict[str, Any], rounds: Rounds) -> dict[str, Any]:
    """Share, compute and open with the others."""
    format = FixedPoint(sum(order["counts"]), tuple(order["bounds"]), order["bits"])
    await mpc.start()
    begun = time.perf_counter()
    x = shared(mpc, order["scores"], order["counts"], format)
    opened = await mpc.output(FUNCTIONS[order["what"]](x, format))
    seconds = time.perf_counter() - begun
    sent = sum(peer.protocol.nbytes_sent for peer in mpc.parties if peer.pid != mpc.pid) - BYTES * rounds.messages
    taken = rounds.longest
    await mpc.shutdown()
    return {"value": np.asarray(opened).tolist(), "bytes": sent, "seconds": seconds, "rounds": taken}


def main() -> None:
    order = json.loads(sys.stdin.read())
    mpc = loaded()
    rounds = Rounds(mpc, order["latency"])
    try:
        found = mpc.run(asyncio.wait_for(take_part(mpc, order, rounds), order["timeout"]))
    except TimeoutError:
        found = {"missing": [peer.pid for peer in mpc.parties if peer.pid != mpc.pid and peer.protocol is None]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
