"""The kinds of word problems that the corpus knows."""

from __future__ import annotations

from jobs.tiny_pair.arithmetic import ProblemFamily

FAMILIES: tuple[ProblemFamily, ...] = (
    ProblemFamily(
        question="{$name buys|At the market $name buys|$name goes to a shop and buys} $a bags of $one for $p dollars "
        "each and $b bags of $two for $q dollars each. {How much does $he pay in total?|What is the total price?}",
        steps="The $one cost [x = a * p] dollars.\nThe $two cost [y = b * q] dollars.\nTogether: [z = x + y] dollars.",
        numbers={"a": (3, 25), "b": (3, 25), "p": (6, 48), "q": (6, 48)},
    ),
    ProblemFamily(
        question="{A|One} $thing costs $p dollars. $name buys $a of them and pays with $m dollars. "
        "{How much change does $he get?|How many dollars does $he get back?}",
        steps="The price is [x = a * p] dollars.\nThe change is [z = m - x] dollars.",
        numbers={"a": (3, 25), "p": (11, 96), "m": (100, 2500)},
    ),
    ProblemFamily(
        question="$name has $h $things. {$upper gets|Then $he buys} $b boxes with $e $things in each box. "
        "{After that|Later} $he gives $g $things to $other. How many $things does $name have {now|left}?",
        steps="The boxes hold [x = b * e] $things.\nWith them $name has [y = h + x] $things.\n"
        "After the gift $he has [z = y - g] $things.",
        numbers={"h": (20, 700), "b": (3, 25), "e": (11, 60), "g": (15, 1500)},
    ),
    ProblemFamily(
        question="{On a trip|Last summer|On $day} $name {travels|rides} $s hours by train at $v kilometers per hour "
        "and then $t hours by bike at $u kilometers per hour. {How far does $he go?|How many kilometers is "
        "that?}",
        steps="By train: [x = s * v] kilometers.\nBy bike: [y = t * u] kilometers.\nAll in all: [z = x + y] "
        "kilometers.",
        numbers={"s": (2, 15), "t": (2, 15), "v": (35, 98), "u": (12, 34)},
    ),
    ProblemFamily(
        question="$name has $t $things. $upper keeps $o of them and {shares the rest equally among|splits the rest "
        "evenly between} $k {friends|children|neighbors}. How many $things does each of them get?",
        given="[y = e * k][t = y + o]",
        steps="$upper shares [x = t - o] $things.\nEach one gets [z = x / k] $things.",
        numbers={"e": (12, 240), "k": (3, 9), "o": (5, 190)},
    ),
    ProblemFamily(
        question="$name has $s dollars {in the bank|in a jar|saved}. {Every week|Each week} $he saves $w dollars more. "
        "After $n weeks $he spends $g dollars on $item. How {much money|many dollars} does $he have {left|then}?",
        steps="In $n weeks $he saves [x = n * w] dollars.\nThat makes [y = s + x] dollars.\n"
        "After the purchase: [z = y - g] dollars.",
        numbers={"s": (15, 600), "w": (11, 95), "n": (3, 26), "g": (10, 1900)},
        choices={"item": ("a coat", "a lamp", "a bike", "a gift", "a chair", "shoes", "a ticket")},
    ),
    ProblemFamily(
        question="$name is $a years old. $other is $k times as old as $name. {$name has a cousin who|A friend of "
        "$name} is $d years younger than $other. {How old are the three together?|What is the sum of the "
        "three ages?}",
        steps="$other is [x = k * a] years old.\nThe third one is [y = x - d] years old.\n"
        "The first two: [v = a + x] years.\nTogether: [z = v + y] years.",
        numbers={"a": (6, 28), "k": (2, 4), "d": (2, 60)},
    ),
    ProblemFamily(
        question="{A garden|A field|The yard of $name} is $h meters long and $w meters wide. {A fence goes all the way "
        "around it.|$name puts a fence around it.} $g meters of the fence are {painted|old}. How many meters are not?",
        steps="Two sides are [x = h + w] meters.\nThe whole fence is [y = x * 2] meters.\n"
        "The rest is [z = y - g] meters.",
        numbers={"h": (25, 480), "w": (15, 380), "g": (11, 900)},
    ),
    ProblemFamily(
        question="A machine {makes|packs} $a $things {a minute|per minute}. {It runs|On $day it runs} for $t minutes, "
        "and $b of the $things are broken. {How many good ones are there?|How many $things are good?}",
        steps="The machine makes [x = a * t] $things.\nGood ones: [z = x - b] $things.",
        numbers={"a": (12, 98), "t": (4, 25), "b": (7, 690)},
    ),
    ProblemFamily(
        question="A book has $p pages. $name reads $a pages a day for $d days and {then|after that} $b pages on $day. "
        "{How many pages are left?|How many pages does $he still have to read?}",
        steps="In $d days $he reads [x = d * a] pages.\nWith $day it is [y = x + b] pages.\nLeft: [z = p - y] pages.",
        numbers={"p": (150, 1900), "a": (12, 68), "d": (3, 21), "b": (14, 99)},
    ),
    ProblemFamily(
        question="A {theater|cinema|concert hall} has $r rows with $s seats each and a balcony with $b seats. "
        "On $day $n tickets are sold. How many seats stay empty?",
        steps="The rows have [x = r * s] seats.\nWith the balcony: [y = x + b] seats.\nEmpty: [z = y - n] seats.",
        numbers={"r": (5, 25), "s": (18, 84), "b": (24, 390), "n": (60, 1900)},
    ),
    ProblemFamily(
        question="$name {works|helps in a shop} $h hours a day for $d days and earns $w dollars an hour. {$upper also "
        "gets a bonus of|At the end there is a bonus of} $b dollars. How much does $he earn {in "
        "all|altogether}?",
        steps="$upper works [x = h * d] hours.\nFor that $he gets [y = x * w] dollars.\n"
        "With the bonus: [z = y + b] dollars.",
        numbers={"h": (3, 8), "d": (3, 6), "w": (11, 42), "b": (15, 490)},
    ),
    ProblemFamily(
        question="A farm has $t trees. Each tree gives $a kilograms of $fruit. $s kilograms are {spoiled|eaten by "
        "birds}. The rest goes into boxes of $k kilograms. How many boxes are {filled|needed}?",
        given="[y = n * k][x = a * t][s = x - y]",
        steps="The trees give [x = t * a] kilograms.\nGood ones: [y = x - s] kilograms.\nBoxes: [z = y / k].",
        numbers={"t": (4, 20), "a": (21, 98), "n": (12, 190), "k": (3, 9)},
        choices={"fruit": ("apples", "pears", "plums", "cherries", "lemons", "walnuts")},
    ),
    ProblemFamily(
        question="$name {walks|swims|runs} $a minutes on Monday. On Tuesday it is $k times as long and on Wednesday $d "
        "minutes less than on Tuesday. {How many minutes is that in three days?|What is the total of the three days?}",
        steps="Tuesday: [x = k * a] minutes.\nWednesday: [y = x - d] minutes.\n"
        "Monday and Tuesday: [v = a + x] minutes.\nTotal: [z = v + y] minutes.",
        numbers={"a": (18, 195), "k": (2, 5), "d": (5, 350)},
    ),
    ProblemFamily(
        question="{A train|A ferry|A bus} leaves with $p {people|passengers}. At the first stop $a get off and $b get "
        "on. At the second stop $c get off and $d get on. How many are {on board|inside} {now|then}?",
        steps="First stop: [x = p - a] and [y = x + b].\nSecond stop: [v = y - c] and [z = v + d].",
        numbers={"p": (120, 900), "a": (13, 99), "b": (11, 380), "c": (13, 360), "d": (11, 299)},
    ),
    ProblemFamily(
        question="{{What is|Can you compute} $a times $p plus $b minus $c?|{Calculate|Work out} $a times $p plus $b "
        "minus $c.}",
        steps="[x = a * p]\n[y = x + b]\n[z = y - c]",
        numbers={"a": (3, 25), "p": (12, 98), "b": (15, 780), "c": (12, 1600)},
    ),
)
