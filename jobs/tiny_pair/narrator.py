"""Random source of the corpus, which prefers a few people within a conversation."""

from __future__ import annotations

from random import Random

from jobs.tiny_pair.facts import PEOPLE

Person = tuple[str, str, str]
_CAST = 3


class Narrator(Random):
    """Seeded Random that draws most people from the conversation's cast."""

    cast: tuple[Person, ...] = ()

    def new_conversation(self) -> None:
        """Draws a new cast."""
        self.cast = tuple(self.sample(PEOPLE, _CAST))

    def people(self, n: int) -> list[Person]:
        """Returns n different people, with probability 0.7 from the cast if it is large enough."""
        return self.sample(self.cast if n <= len(self.cast) and self.random() < 0.7 else PEOPLE, n)
