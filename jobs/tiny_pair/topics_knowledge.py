"""Topics about the tables of facts."""

from __future__ import annotations

from jobs.tiny_pair.facts import ANIMALS, COUNTRIES, HOWTOS, JOBS, OPPOSITES, TERMS, UNITS, WEEKDAYS, WORDS
from jobs.tiny_pair.narrator import Narrator
from jobs.tiny_pair.phrasing import Exchange, article, listing, say


def capital(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a country's capital."""
    (country, city, continent, _), (second, second_city, _, _) = rng.sample(COUNTRIES, 2)
    ask = say(rng, "{What is the capital of $country?|Which city is the capital of $country?|Tell me the capital of "
              "$country.|Do you know the capital of $country?}", country=country)  # fmt: skip
    answer = say(rng, "The capital of $country is $city.{| $country is a country in $continent.| It is a lovely city.}",
                 country=country, city=city, continent=continent)  # fmt: skip
    follow = say(rng, "{And|What about|And what about} $second?", second=second)
    return [(ask, answer), (follow, f"The capital of {second} is {second_city}.")][: rng.randint(1, 2)]


def language(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a country's language."""
    country, city, continent, tongue = rng.choice(COUNTRIES)
    ask = say(rng, "{Which language do people speak in $country?|What do they speak in $country?|I will travel to "
                   "$country. What language will I hear?}", country=country)  # fmt: skip
    answer = say(rng, "{Most people|People} in $country speak $tongue. {$country lies in $continent, and its capital "
                      "is $city.|In $city you will hear other languages as "
                      "well.}", country=country, tongue=tongue, city=city,
                 continent=continent)  # fmt: skip
    return [(ask, answer)]


def animal(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about facts about an animal."""
    name, group, food, home, legs = rng.choice(ANIMALS)
    one = article(name)
    ask = say(rng, "{What does $one eat?|What kind of animal is $one?|Tell me {something|a few facts} about the "
                   "$name.|How many legs does $one have?|Where does $one live?}", one=one, name=name)  # fmt: skip
    answer = say(rng, "{The $name is $group.|$One is $group.} It eats $food and lives $home. It has $legs "
                      "legs.", name=name,
                 One=one.capitalize(), group=article(group), food=food, home=home, legs=legs or "no")  # fmt: skip
    return [(ask, answer)]


def opposite(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about opposites of words."""
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in rng.sample(OPPOSITES, 3)]
    ask = say(rng, "{What is the opposite of $word?|Give me the opposite of $word.|Which word means the opposite of "
                   "$word?}",
              word=pairs[0][0])  # fmt: skip
    turns = [(ask, f"The opposite of {pairs[0][0]} is {pairs[0][1]}.")]
    for word, other in pairs[1:]:
        turns.append((say(rng, "And {of|the opposite of} $word?", word=word), f"The opposite of {word} is {other}."))
    return turns[: rng.randint(1, 3)]


def translation(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about translations of words."""
    column = rng.randint(1, 3)
    tongue = ("Spanish", "French", "German")[column - 1]
    rows = rng.sample(WORDS, 2)
    ask = say(rng, "{How do you say $word in $tongue?|What is $word in $tongue?|Translate $word into $tongue.}",
              word=rows[0][0], tongue=tongue)  # fmt: skip
    turns = [(ask, f"The {tongue} for {rows[0][0]} is {rows[0][column]}.")]
    turns.append((f"And what is {rows[1][0]}?", f"The {tongue} for {rows[1][0]} is {rows[1][column]}."))
    return turns[: rng.randint(1, 2)]


def job(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a profession."""
    name, does, place = rng.choice(JOBS)
    one = article(name)
    ask = say(rng, "{What does $one do?|What is the work of $one?|I want to become $one. What would I do?|Where does "
                   "$one work?}", one=one)  # fmt: skip
    answer = say(rng, "{$One|As a rule, $one} $does. {Most of the work is done in|You will often find one in} $place.",
                 one=one, One=one.capitalize(), does=does, place=place)  # fmt: skip
    return [(ask, answer)]


def howto(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about instructions in steps."""
    task, steps = rng.choice(HOWTOS)
    ask = say(rng, "{How do I|How can I|What is the best way to|Please explain how to} $task?", task=task)
    ask = ask.replace("how to " + task + "?", "how to " + task + ".")
    numbered = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
    answer = say(rng, "{Here is how to $task:|It takes only a few steps:|To $task, follow these steps:}\n", task=task)
    pick = rng.randint(1, len(steps))
    follow = say(rng, "{What was step $i again?|Can you repeat step $i?}", i=pick)
    return [(ask, answer + numbered), (follow, f"Step {pick}: {steps[pick - 1]}")][: rng.randint(1, 2)]


def term(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about the explanation of a term."""
    name, meaning, more = rng.choice(TERMS)
    ask = say(rng, "{What is $name?|Can you explain what $name is?|Explain in simple words: what is $name?|I heard "
                   "about $name. What is it?}", name=name)  # fmt: skip
    answer = say(rng, "$Name is $meaning. $more", Name=name[0].upper() + name[1:], meaning=meaning, more=more)
    return [(ask, answer)]


def unit(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a conversion of units."""
    large, small, factor = rng.choice(UNITS)
    n = rng.randint(2, 9)
    ask = say(rng, "{How many $small are $n $large?|Convert $n $large to $small.|What is $n $large in $small?}", n=n,
              large=large, small=small)  # fmt: skip
    answer = (
        f"There are {factor} {small} in one of the {large}, so {n} {large} are {n} * {factor} = {n * factor} {small}."
    )
    return [(ask, answer)]


def calendar(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a calculation with weekdays."""
    start, days = rng.randrange(7), rng.randint(2, 6)
    path = [WEEKDAYS[(start + i) % 7] for i in range(days + 1)]
    ask = say(rng, "{Today is $first. What day is it in $days days?|If today is $first, which day comes $days days "
                   "later?}",
              first=path[0], days=days)  # fmt: skip
    return [(ask, f"After {path[0]} come {listing(path[1:])}. So it is {path[-1]}.")]


TOPICS = (capital, language, animal, opposite, translation, job, howto, term, unit, calendar)
