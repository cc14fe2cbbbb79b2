"""The store by which the ranks of a group met, and by which they say what is no message."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

GONE = "the store by which the ranks met does not answer; see how the process ended that has it, rank 0 or torchrun"


def store_of(group: dist.ProcessGroup, timeout: timedelta) -> Store:
    """One that waits so long; of its own where there can be one, so that no other thread waits for it."""
    store = PrefixStore("softmaxima", _get_process_group_store(group))
    with contextlib.suppress(RuntimeError):  # of a store that is written in Python, which is taken as it is
        store = store.clone()  # pyright: ignore[reportAttributeAccessIssue]
        store.set_timeout(timeout)
    return store


def met(store: Store, rank: int, size: int, timeout: timedelta, silent: Callable[[Store, Sequence[str]], str]) -> tuple[Store, str]:
    """(the store with nothing left of an earlier group of the same name, why not all ranks are there), once all ask.

    Each says that it is here by a word of its own, and the first answers that with one for all. `silent` says which ranks have not
    said what they say by some keys.
    """
    word, problem = secrets.token_hex(8), ""
    keys = [f"here/{other}" for other in range(size)]
    try:
        store.set(keys[rank], word)
        try:
            if rank:
                answer = f"met/{word}"
                word, problem = json.loads(heard(store, [answer], timeout)[0])
                delete(store, [answer])
            else:
                heard(store, keys, timeout)
        except dist.DistNetworkError:
            raise
        except RuntimeError:  # of a store that is there; of a file no DistStoreError
            problem = silent(store, keys)
        for key in keys[1:] if rank == 0 else []:
            if is_there(store, key):
                store.set(f"met/{store.get(key).decode()}", json.dumps([word, problem]))
        delete(store, [keys[rank]])
    except dist.DistNetworkError:
        problem = GONE
    return PrefixStore(word, store), problem


def is_there(store: Store, *keys: str) -> bool:
    """Whether all of these are."""
    try:
        return store.check([*keys])
    except RuntimeError:  # the store went with its rank, which is the first
        return False


def read(store: Store, key: str) -> str | None:
    """What stands there now; None for nothing, and of a store that is gone."""
    try:
        return store.get(key).decode() if store.check([key]) else None
    except RuntimeError:
        return None


def heard(store: Store, keys: Sequence[str], timeout: timedelta) -> list[bytes]:
    """What comes by these keys. Raises DistStoreError where it does not.

    A store that waits does not hear of an interrupt, and says on stderr that it gave up; so it is asked again and again.
    """
    begun = time.monotonic()
    while not store.check([*keys]):
        waited = time.monotonic() - begun
        if waited >= timeout.total_seconds():
            raise dist.DistStoreError(f"nothing came within {waited:.3g} s")
        time.sleep(min(max(waited / 8, 5e-5), 0.1))
    return store.multi_get([*keys]) if len(keys) > 1 else [store.get(keys[0])]


def delete(store: Store, keys: Sequence[str]) -> None:
    with contextlib.suppress(RuntimeError):  # of a store that cannot
        for key in keys:
            store.delete_key(key)
