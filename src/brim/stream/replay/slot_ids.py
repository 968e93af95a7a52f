"""Which slots of a replay buffer hold a sample id."""

from collections.abc import Iterable

from brim.data.ids import SampleId


class IdIndex:
    """A slot is stored bare where an id has one, which is nearly always; as a key of a dict, in order, where it has several."""

    def __init__(self, pairs: Iterable[tuple[SampleId, int]] = ()) -> None:
        self._slots: dict[SampleId, int | dict[int, None]] = {}
        self.update(pairs)

    def __contains__(self, id: object) -> bool:
        return id in self._slots

    def slots(self, id: SampleId) -> list[int]:
        found = self._slots.get(id, {})
        return list(found) if isinstance(found, dict) else [found]

    def any_known(self, ids: Iterable[SampleId]) -> bool:
        return not self._slots.keys().isdisjoint(ids)

    def add(self, id: SampleId, slot: int) -> None:
        found = self._slots.setdefault(id, slot)
        if isinstance(found, dict):
            found[slot] = None
        elif found != slot:
            self._slots[id] = {found: None, slot: None}

    def add_unknown(self, pairs: Iterable[tuple[SampleId, int]]) -> None:
        """Ids of which none is known and none comes twice."""
        self._slots.update(pairs)

    def update(self, pairs: Iterable[tuple[SampleId, int]]) -> None:
        for id, slot in pairs:
            self.add(id, slot)

    def discard(self, id: SampleId, slot: int) -> None:
        found = self._slots[id]
        if not isinstance(found, dict):
            del self._slots[id]
            return
        del found[slot]
        if len(found) == 1:
            self._slots[id] = next(iter(found))
