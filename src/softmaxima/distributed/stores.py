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

from softmaxima.distributed.agreement import wrong

GONE = "the store by which the ranks met does not answer; see how the process ended that has it, rank 0 or torchrun"
BROKEN = "broken"  # the key of why the messages of a group no longer meet
LEFT = "left"  # the key of what the first tells where it does not wait until all have come
SOON = 0.02  # seconds within which all ranks come to an agreement as a rule


def store_of(group: dist.ProcessGroup, timeout: timedelta) -> Store:
    """One that waits so long; of its own where there can be one, so that no other thread waits for it."""
    store = PrefixStore("softmaxima", _get_process_group_store(group))
    with contextlib.suppress(RuntimeError):  # of a store that is written in Python, which is taken as it is
        store = store.clone()  # pyright: ignore[reportAttributeAccessIssue]
        store.set_timeout(timeout)
    return store


class Meeting:
    """How the ranks of a group meet: each says by a word of its own that it is here, and the first answers that with one for all.

    So nothing counts that is left of an earlier group of the same name.
    """

    def __init__(self, store: Store, rank: int, names: Sequence[int]) -> None:
        self.store, self.rank, self.names = store, rank, names
        self.word = secrets.token_hex(8)
        self.has_left = False
        self._here = [f"here/{each}" for each in range(len(names))]
        self._answer = f"met/{self.word}" if rank else LEFT

    def attend(self, timeout: timedelta, silent: Callable[[Store, Sequence[str]], str]) -> tuple[Store, str, str]:
        """(the store of this group alone, why not all ranks came, what others raised that left before), once all have come.

        `silent` says which ranks have not said what they say by some keys.
        """
        word, missing, problem = self.word, "", ""
        try:
            if not self.has_left:
                self._come()
            try:
                said = heard(self.store, [self._answer] if self.rank else self._here, timeout, unless=LEFT)
            except dist.DistNetworkError:
                raise
            except RuntimeError:  # of a store that is there; of a file no DistStoreError
                left = read(self.store, LEFT) if self.rank else None
                said, missing = ([left.encode()], "") if left else ([], silent(self.store, self._here))
            if self.rank and said:
                word, missing, problem = json.loads(said[0])
            elif self.rank == 0:
                missing, problem = self._tell_all(missing)
            delete(self.store, [self._here[self.rank], *([self._answer] if self.rank else [])])
        except dist.DistNetworkError:
            missing = GONE
        return PrefixStore(word, self.store), missing, "" if self.has_left else problem

    def leave(self, problem: str, breaks: bool = False) -> Store | None:
        """Tells the others why this rank does not wait for them; the store of this group alone, if that is known yet.

        A problem that `breaks` is said as it is, and no messages of the group meet.
        """
        self.has_left = True
        if self.rank == 0:
            said = [problem, ""] if breaks else ["", wrong([{"problem": problem}], self.names[:1])]
            self.store.set(LEFT, json.dumps([self.word, *said]))
            own = PrefixStore(self.word, self.store)
            if missing := self._why_broken():  # who came before has yet to read this
                own.set(BROKEN, missing)
            return own
        self._come(problem, breaks)
        if (said := read(self.store, self._answer) or read(self.store, LEFT)) is None:
            return None
        delete(self.store, [self._here[self.rank], self._answer])
        return PrefixStore(json.loads(said)[0], self.store)

    def _come(self, problem: str = "", breaks: bool = False) -> None:
        if self.rank == 0:
            delete(self.store, [LEFT])
        self.store.set(self._here[self.rank], json.dumps([self.word, problem, breaks]))

    def _words(self) -> list[tuple[str, str, bool]]:
        """(its word, what it raised that left, whether no messages meet for that) of each rank that is here."""
        return [json.loads(read(self.store, key) or '["", "", false]') for key in self._here]

    def _why_broken(self) -> str:
        return next((problem for _, problem, breaks in self._words() if breaks), "")

    def _tell_all(self, missing: str) -> tuple[str, str]:
        """The first answers all who are here: with why not all are, or why no messages meet, and what those raised that left."""
        here, missing = self._words(), self._why_broken() or missing
        problem = wrong([{"problem": problem} if problem else {} for _, problem, _ in here], self.names) or ""
        for word, _, _ in here[1:]:
            if word:
                self.store.set(f"met/{word}", json.dumps([self.word, missing, problem]))
        return missing, problem


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


def heard(store: Store, keys: Sequence[str], timeout: timedelta, unless: str) -> list[bytes]:
    """What comes by these keys. Raises DistStoreError where it does not, or where something stands by another key.

    A store that waits does not hear of an interrupt, and says on stderr that it gave up; so it is asked again and again.
    """
    begun = time.monotonic()
    while not store.check([*keys]):
        waited = time.monotonic() - begun
        if waited >= timeout.total_seconds():
            raise dist.DistStoreError(f"nothing came within {waited:.3g} s")
        if waited > SOON and store.check([unless]):
            raise dist.DistStoreError(f"{unless} was said")
        time.sleep(min(max(waited / 8, 5e-5), 0.1))
    return store.multi_get([*keys]) if len(keys) > 1 else [store.get(keys[0])]


def delete(store: Store, keys: Sequence[str]) -> None:
    with contextlib.suppress(RuntimeError):  # of a store that cannot
        for key in keys:
            store.delete_key(key)
