"""The random source of the corpus: it keeps to a few people while a conversation lasts."""

from __future__ import annotations

from random import Random

from jobs.tiny_pair.facts import PEOPLE

Person = tuple[str, str, str]
_CAST = 3


class Narrator(Random):
    """A seeded Random that draws people from the cast of the conversation more often than from all."""

    cast: tuple[Person, ...] = ()

    def new_conversation(self) -> None:
        self.cast = tuple(self.sample(PEOPLE, _CAST))

    def people(self, n: int) -> list[Person]:
        """n different people; up to the size of the cast, most often out of it."""
        return self.sample(self.cast if n <= len(self.cast) and self.random() < 0.7 else PEOPLE, n)
