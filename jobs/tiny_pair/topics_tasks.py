"""Topics with tasks on given text: lists, sentences and notes."""

from __future__ import annotations

from jobs.tiny_pair.facts import COLOURS, COUNTABLE, KINDS, MONTHS, PEOPLE, ROOMS, WEEKDAYS
from jobs.tiny_pair.narrator import Narrator
from jobs.tiny_pair.phrasing import Exchange, article, listing, say

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def _words(rng: Narrator, low: int, high: int) -> tuple[str, list[str]]:
    kind, words = rng.choice(KINDS)
    return kind, rng.sample(words.split(), rng.randint(low, high))


def name_some(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a list of things of one kind."""
    kind, words = _words(rng, 3, 6)
    ask = say(rng, "{Name|List|Give me|Can you name} $n $kind{.| please.}", n=_NUMBERS[len(words)], kind=kind)
    if ask.startswith("Can"):
        ask = f"{ask.split(' please')[0].rstrip('.')}?"
    return [(ask, "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1)))]


def sort(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a list in alphabetical order."""
    kind, words = _words(rng, 3, 7)
    ask = say(rng, "{Sort these $kind|Put these $kind in order|Order these $kind} {by the alphabet|alphabetically|from "
                   "A to Z}: $words", kind=kind, words=", ".join(words))  # fmt: skip
    ordered = sorted(words)
    turns = [(ask, ", ".join(ordered))]
    turns.append((say(rng, "{Which one is last?|And which is the last one?}"), f"The last one is {ordered[-1]}."))
    return turns[: rng.randint(1, 2)]


def count(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about the number of words in a list."""
    kind, words = _words(rng, 3, 10)
    ask = say(rng, "{How many $kind are in this list|Count the $kind|How many $kind do you see here}: "
                   "$words", kind=kind,
              words=", ".join(words))  # fmt: skip
    steps = " ".join(f"{i} {word}" for i, word in enumerate(words, 1))
    return [(ask, f"{steps}. There are {len(words)} {kind}.")]


def backwards(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a list in reverse order."""
    _, words = _words(rng, 3, 7)
    ask = say(rng, "{Say these words backwards|Reverse this list|Start from the end}: $words", words=", ".join(words))
    return [(ask, ", ".join(words[::-1]))]


def polite(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a polite version of a request."""
    name, room, thing = rng.people(1)[0][0], rng.choice(ROOMS), rng.choice(COUNTABLE)
    low = say(
        rng,
        "{bring the $thing to the $room|clean the $room|call me on $day|send $name the report|close the door of "
        "the $room|give the $thing to $name}",
        name=name,
        room=room,
        thing=thing,
        day=rng.choice(WEEKDAYS),
    )
    ask = say(rng, "{Make this more polite|Rewrite this in a friendly way|Say this politely}: $Low{!|, now!|.}",
              Low=low[0].upper() + low[1:])  # fmt: skip
    return [(ask, say(rng, "{Could you please|Would you please} $low? {Thank you.|Many thanks.}", low=low))]


def shout(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a text in capital letters."""
    _, words = _words(rng, 2, 5)
    ask = say(rng, "{Write this in capital letters|Put this in capitals}: $words", words=" ".join(words))
    return [(ask, " ".join(words).upper())]


def note(rng: Narrator) -> list[Exchange]:
    """Returns a longer note with one or two questions about it."""
    n = rng.choice((3, 4, 5, 6, 7, 8, 10, 13, 16, 18))
    people = rng.sample([row[0] for row in PEOPLE], n)
    owned = [(rng.choice(COLOURS), rng.choice(COUNTABLE), rng.choice(ROOMS)) for _ in people]
    shape = rng.choice(("$name has a $colour $thing in the $room.", "The $colour $thing in the $room belongs to $name.",
                        "In the $room $name keeps a $colour $thing."))  # fmt: skip
    lines = [say(rng, shape, name=p, colour=c, thing=t, room=r) for p, (c, t, r) in zip(people, owned, strict=True)]
    ask = say(rng, "{Read this note and answer the question.|Here is a note.|Please read this carefully.}")
    turns, asked = [], rng.sample(range(n), 2)
    for i in asked:
        colour, thing, room = owned[i]
        question, answer = rng.choice(
            [(f"Where is the {thing} of {people[i]}?", f"The {colour} {thing} of {people[i]} is in the {room}."),
             (f"What does {people[i]} have?", f"{people[i]} has {article(colour)} {thing} in the {room}.")]
        )  # fmt: skip
        turns.append((question, answer))
    turns[0] = (f"{ask}\n{' '.join(lines)}\n{turns[0][0]}", turns[0][1])
    return turns[: rng.randint(1, 2)]


def summary(rng: Narrator) -> list[Exchange]:
    """Returns minutes of a meeting to summarise as a list of tasks."""
    people = rng.sample([row[0] for row in PEOPLE], rng.randint(3, 8))
    work = rng.sample(
        (
            "order the new chairs",
            "call the printer",
            "book a room",
            "write the report",
            "test the website",
            "pay the bills",
            "invite the guests",
            "check the budget",
            "draw the poster",
        ),
        len(people),
    )
    filler = ("The coffee was cold again.", "We talked about the weather for a while.", "Nobody liked the first draft.",
              "It took longer than "
              "planned.", "Some of us came by bike.", "The room was a little too warm.")  # fmt: skip
    lines = [f"We met on {rng.choice(WEEKDAYS)}, {rng.choice(MONTHS)} {rng.randint(1, 28)}."]
    for person, task in zip(people, work, strict=True):
        lines += rng.sample(filler, rng.randint(0, 2))
        lines.append(say(rng, "{$person will $task.|It was agreed that $person will $task.|$person promised to $task.}",
                         person=person, task=task))  # fmt: skip
    ask = say(rng, "{Summarize these notes|Who does what? Here are the notes|Make a short list of tasks from this}: "
                   "$text",
              text=" ".join(lines))  # fmt: skip
    return [(ask, "\n".join(f"- {p}: {t}" for p, t in zip(people, work, strict=True)))]


def shopping_list(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a shopping list in groups."""
    kinds = rng.sample([row for row in KINDS if row[0] in ("fruits", "vegetables", "tools", "clothes")], 2)
    groups = [(kind, rng.sample(words.split(), rng.randint(2, 3))) for kind, words in kinds]
    mixed = [word for _, words in groups for word in words]
    rng.shuffle(mixed)
    ask = say(rng, "{Sort this shopping list into groups|Group these things|Which of these belong together}: $all{.|}",
              all=listing(mixed))  # fmt: skip
    return [(ask, "\n".join(f"{kind.capitalize()}: {', '.join(w for w in mixed if w in ws)}" for kind, ws in groups))]


TOPICS = (name_some, sort, count, backwards, polite, shout, note, summary, shopping_list)
