"""Topics of small talk, without facts or numbers."""

from __future__ import annotations

from jobs.tiny_pair.facts import COLOURS, KINDS, MONTHS, ROOMS, WEEKDAYS
from jobs.tiny_pair.narrator import Narrator
from jobs.tiny_pair.phrasing import Exchange, say


def greeting(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a greeting with a name."""
    name = rng.people(1)[0][0]
    hello = say(rng, "{Hello|Hi|Hey|Good morning|Good evening}{!| there!|, how are you?} ", name=name)
    ask = say(rng, "{I am $name.|My name is $name.|This is $name.}{| Nice to meet you.| I am new here.}", name=name)
    answer = say(
        rng,
        "{Hello|Hi} $name! {It is nice to meet you.|Good to hear from you.|I am well, thank you.} "
        "{How can I help you today?|What can I do for you?|What would you like to talk about?}",
        name=name,
    )
    if rng.random() < 0.4:
        return [(hello + ask, answer)]
    recall = say(rng, "{Do you remember my name?|What is my name?|Can you say my name again?}")
    return [(hello + ask, answer), (recall, f"Of course. Your name is {name}.")]


def hobby(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about advice about a hobby."""
    kind, words = rng.choice([row for row in KINDS if row[0] in ("instruments", "sports")])
    thing = rng.choice(words.split())
    verb = "play the" if kind == "instruments" else "try"
    ask = say(rng, "I {want|would like|have decided} to $verb $thing{ this year| this summer|}. {Any tips?|What do you "
              "think?|Is it hard?|Where should I start?}", verb=verb, thing=thing)  # fmt: skip
    answer = say(
        rng,
        "{That sounds like fun!|What a good idea!|I like that plan.} {$Thing takes|Like most things, $thing takes} "
        "some practice, but {it is worth it|you will learn fast|small steps help a lot}. {Try to practice for|Start "
        "with} $n minutes {a day|every day|each day} and {find a friend to join you|take a few lessons|keep notes of "
        "what you learn}.",
        Thing=thing.capitalize(), thing=thing, n=rng.choice((10, 15, 20, 30)),
    )  # fmt: skip
    return [(ask, answer)]


def weekend(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a plan for a day."""
    day, room, name = rng.choice(WEEKDAYS), rng.choice(ROOMS), rng.people(1)[0][0]
    ask = say(rng, "{What should I do on $day?|I have no plans for $day. Any ideas?|Help me to plan my $day.|How can I "
              "spend a {rainy|sunny|quiet} $day?}", day=day)  # fmt: skip
    answer = say(
        rng,
        "{Here is a plan for $day.|How about this for $day?|A good $day could look like this.} In the morning, {clean "
        "the $room|go for a walk|bake some bread|read in the park}. {At noon|For lunch}, {cook a soup|meet $name|make "
        "a salad|try a new cafe}. In the evening, {watch an old film|play a board game|write a letter|listen to "
        "music}.",
        day=day, room=room, name=name,
    )  # fmt: skip
    return [(ask, answer)]


def present(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about an idea for a present."""
    (name, he, _), colour = rng.people(1)[0], rng.choice(COLOURS)
    likes, gift = rng.choice(
        [("music", "a small speaker"), ("plants", "a lemon tree in a pot"), ("books", "a novel and a reading lamp"),
         ("cooking", "a good knife"), ("travel", "a map of the world"), ("painting", "a box of brushes"),
         ("coffee", "a hand grinder"), ("hiking", "a warm pair of socks")]
    )  # fmt: skip
    ask = say(rng, "{What can I give $name for $his birthday?|I need a present for $name.|Can you suggest a gift for "
              "$name?} {$He likes|$He loves|$He is fond of} $likes.", name=name, likes=likes, He=he.capitalize(),
              his={"she": "her", "he": "his"}[he])  # fmt: skip
    answer = say(rng, "{Since|As} $name likes $likes, {I would choose|you could give|how about} $gift. {Wrap it in "
                      "$colour paper|Add a $colour ribbon|Put it in a $colour box} and write a {short|kind|funny} "
                      "card.", name=name,
                 likes=likes, gift=gift, colour=colour)  # fmt: skip
    return [(ask, answer)]


def story(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a short story."""
    (name, he, his), colour, place = rng.people(1)[0], rng.choice(COLOURS), rng.choice(ROOMS)
    animal = rng.choice(("fox", "owl", "mouse", "cat", "goat", "crow"))
    ask = say(rng, "{Tell me|Write|I would like} a {short|very short|little} story about {a|the} $animal and {a "
                   "{girl|boy} named $name|my friend $name}.", animal=animal, name=name)  # fmt: skip
    answer = say(
        rng,
        "{One|On a cold} {morning|evening|night}, $name found a $colour $animal in the $place. {It had lost its "
        "way.|It was hungry.|It could not sleep.} $He {gave it some bread|made it a bed of hay|sang it a song} and "
        "{waited until it was calm|opened the door}. {The next day|A week later} the $animal came back with a {shiny "
        "coin|small key|red berry} {as a thank you|for $name}. {From then on they were friends.|Nobody believed $his "
        "story, but it was true.}",
        name=name, colour=colour, animal=animal, place=place, He=he.capitalize(), his=his,
    )  # fmt: skip
    return [(ask, answer)]


def message(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about a short letter."""
    (name, _, _), (sender, _, _) = rng.people(2)
    day, month = rng.choice(WEEKDAYS), rng.choice(MONTHS)
    why = rng.choice(("I am ill", "my train is late", "the car is broken", "I have to work", "my parents visit us"))
    what = rng.choice(("our meeting", "the party", "the concert", "the lesson", "our dinner", "the dentist visit"))
    ask = say(rng, "{Write|Please write|Can you write} {a short message|an email|a note} to $name: I cannot come to "
                   "$what on $day because $why.{ Sign it as $sender.| My name is "
                   "$sender.}", name=name, what=what, day=day, why=why,
              sender=sender)  # fmt: skip
    answer = say(
        rng,
        "Dear $name,\n{I am sorry, but|Unfortunately} I cannot come to $what on $day because $why. {Could we find "
        "another date in $month?|I hope that we can meet soon.|Please tell me what I miss.}\n{Best wishes|Kind "
        "regards|Yours},\n$sender",
        name=name, what=what, day=day, why=why, month=month, sender=sender,
    )  # fmt: skip
    return [(ask, answer)]


def thanks(rng: Narrator) -> list[Exchange]:
    """Returns an exchange about thanks and farewell."""
    ask = say(rng, "{Thank you|Thanks|Great, thank you}{, that helps{ a lot|}|  so much| for your help}{.|!}{| That is "
                   "all for now.| See you tomorrow.| I have to go now.}").replace("  ", " ")  # fmt: skip
    answer = say(rng, "{You are welcome|My pleasure|Glad I could help|Any time}{.|!} {Have a nice day.|Good luck with "
                 "everything.|Come back whenever you like.|Take care.}")  # fmt: skip
    return [(ask, answer)]


TOPICS = (greeting, hobby, weekend, present, story, message, thanks)
