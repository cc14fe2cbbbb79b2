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


def shared(mpc: Any, own: list[float], counts: list[int], format: FixedPoint) -> Any:
    """The scores of all parties, as shares, in their order."""
    rows = []
    for party, count in enumerate(counts):
        scores = np.array(own) if party == mpc.pid else np.zeros(count)
        if count:
            rows.append(mpc.input(format.numbers.array(scores, integral=False), senders=party))
    return rows[0] if len(rows) == 1 else mpc.np_concatenate(rows)


def delay(mpc: Any, latency: float) -> None:
    """Let each message arrive later by so many seconds."""
    from mpyc.asyncoro import MessageExchanger

    received = MessageExchanger.data_received
    MessageExchanger.data_received = lambda self, data: mpc._loop.call_later(latency, received, self, data)  # type: ignore[method-assign]


async def take_part(mpc: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Share, compute and open with the others."""
    format = FixedPoint(sum(order["counts"]), tuple(order["bounds"]), order["bits"])
    await mpc.start()
    begun = time.perf_counter()
    x = shared(mpc, order["scores"], order["counts"], format)
    opened = await mpc.output(FUNCTIONS[order["what"]](x, format))
    seconds = time.perf_counter() - begun
    sent = sum(peer.protocol.nbytes_sent for peer in mpc.parties if peer.pid != mpc.pid)
    await mpc.shutdown()
    return {"value": np.asarray(opened).tolist(), "bytes": sent, "seconds": seconds}


def main() -> None:
    order = json.loads(sys.stdin.read())
    mpc = loaded()
    if order["latency"]:
        delay(mpc, order["latency"])
    try:
        found = mpc.run(asyncio.wait_for(take_part(mpc, order), order["timeout"]))
    except TimeoutError:
        found = {"missing": [peer.pid for peer in mpc.parties if peer.pid != mpc.pid and peer.protocol is None]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
