"""Facts and words of the corpus."""

from __future__ import annotations

PEOPLE: tuple[tuple[str, str, str], ...] = tuple(
    (name, *pronouns)
    for pronouns, names in (
        (("she", "her"), "Mia Anna Lena Nora Ella Ruth Clara Ivy Sofia Amina Priya Yuki Rosa Greta Olga Zoe"),
        (("he", "his"), "Tom Ben Omar Leo Max Ivan Hugo Paul Noah Felix Ravi Kenji Luis Karl Adam Eric"),
    )
    for name in names.split()
)
"""Name, pronoun, possessive."""

COUNTABLE = (
    "apple",
    "book",
    "pencil",
    "marble",
    "card",
    "shell",
    "button",
    "coin",
    "sticker",
    "cookie",
    "lemon",
    "candle",
    "ribbon",
    "stamp",
    "bottle",
    "mug",
    "plate",
)
GROCERIES = (
    "apples",
    "pears",
    "lemons",
    "eggs",
    "rolls",
    "carrots",
    "onions",
    "melons",
    "muffins",
    "yogurts",
    "tomatoes",
    "peaches",
)
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "orange", "purple")
ROOMS = ("kitchen", "garden", "attic", "cellar", "office", "garage", "hall", "library")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

COUNTRIES: tuple[tuple[str, str, str, str], ...] = (
    ("France", "Paris", "Europe", "French"),
    ("Germany", "Berlin", "Europe", "German"),
    ("Spain", "Madrid", "Europe", "Spanish"),
    ("Italy", "Rome", "Europe", "Italian"),
    ("Portugal", "Lisbon", "Europe", "Portuguese"),
    ("Poland", "Warsaw", "Europe", "Polish"),
    ("Greece", "Athens", "Europe", "Greek"),
    ("Norway", "Oslo", "Europe", "Norwegian"),
    ("Sweden", "Stockholm", "Europe", "Swedish"),
    ("Austria", "Vienna", "Europe", "German"),
    ("Hungary", "Budapest", "Europe", "Hungarian"),
    ("Egypt", "Cairo", "Africa", "Arabic"),
    ("Kenya", "Nairobi", "Africa", "Swahili"),
    ("Morocco", "Rabat", "Africa", "Arabic"),
    ("Senegal", "Dakar", "Africa", "French"),
    ("Japan", "Tokyo", "Asia", "Japanese"),
    ("China", "Beijing", "Asia", "Chinese"),
    ("Thailand", "Bangkok", "Asia", "Thai"),
    ("Vietnam", "Hanoi", "Asia", "Vietnamese"),
    ("Peru", "Lima", "South America", "Spanish"),
    ("Chile", "Santiago", "South America", "Spanish"),
    ("Cuba", "Havana", "North America", "Spanish"),
    ("Iceland", "Reykjavik", "Europe", "Icelandic"),
    ("Finland", "Helsinki", "Europe", "Finnish"),
)
"""Country, capital, continent, language."""

ANIMALS: tuple[tuple[str, str, str, str, int], ...] = (
    ("horse", "mammal", "grass and hay", "on meadows and farms", 4),
    ("cow", "mammal", "grass", "on farms", 4),
    ("cat", "mammal", "meat and fish", "close to people", 4),
    ("dog", "mammal", "meat and grain", "close to people", 4),
    ("elephant", "mammal", "leaves, bark and grass", "in savannas and forests", 4),
    ("whale", "mammal", "krill and fish", "in the ocean", 0),
    ("bat", "mammal", "insects and fruit", "in caves and old trees", 2),
    ("owl", "bird", "mice and insects", "in forests and barns", 2),
    ("duck", "bird", "plants and small insects", "on lakes and ponds", 2),
    ("penguin", "bird", "fish and krill", "on cold coasts", 2),
    ("eagle", "bird", "fish and small animals", "in the mountains", 2),
    ("frog", "amphibian", "flies and worms", "near ponds", 4),
    ("snake", "reptile", "mice and eggs", "in deserts and forests", 0),
    ("turtle", "reptile", "leaves, berries and worms", "on land and in the sea", 4),
    ("salmon", "fish", "insects and smaller fish", "in rivers and in the sea", 0),
    ("shark", "fish", "fish and seals", "in the ocean", 0),
    ("bee", "insect", "nectar and pollen", "in hives", 6),
    ("ant", "insect", "seeds, plants and other insects", "in nests under the ground", 6),
    ("spider", "arachnid", "insects", "in webs and under stones", 8),
)
"""Animal, group, food, home, legs."""

KINDS: tuple[tuple[str, str], ...] = (
    ("fruits", "apple pear banana cherry plum mango orange grape peach lemon"),
    ("vegetables", "carrot onion potato cabbage spinach pepper leek celery pumpkin bean"),
    ("colours", "red blue green yellow orange purple brown white black pink"),
    ("instruments", "piano violin guitar flute drum trumpet harp cello organ clarinet"),
    ("sports", "football tennis swimming hockey cycling rowing skiing judo golf running"),
    ("tools", "hammer saw drill wrench pliers chisel file level clamp spade"),
    ("trees", "oak pine birch maple willow ash beech elm spruce cedar"),
    ("clothes", "shirt coat scarf hat glove sock dress sweater skirt jacket"),
)
"""A kind of thing and ten of them."""

OPPOSITES: tuple[tuple[str, str], ...] = (
    ("hot", "cold"), ("big", "small"), ("fast", "slow"), ("early", "late"), ("light", "dark"), ("happy", "sad"),
    ("full", "empty"), ("hard", "soft"), ("high", "low"), ("new", "old"), ("open", "closed"), ("rich", "poor"),
    ("strong", "weak"), ("wet", "dry"), ("young", "old"), ("loud", "quiet"), ("clean", "dirty"), ("deep", "shallow"),
    ("thick", "thin"), ("sharp", "blunt"), ("brave", "timid"),
)  # fmt: skip

WORDS: tuple[tuple[str, str, str, str], ...] = (
    ("house", "casa", "maison", "Haus"),
    ("water", "agua", "eau", "Wasser"),
    ("bread", "pan", "pain", "Brot"),
    ("dog", "perro", "chien", "Hund"),
    ("cat", "gato", "chat", "Katze"),
    ("book", "libro", "livre", "Buch"),
    ("sun", "sol", "soleil", "Sonne"),
    ("moon", "luna", "lune", "Mond"),
    ("tree", "árbol", "arbre", "Baum"),
    ("friend", "amigo", "ami", "Freund"),
    ("milk", "leche", "lait", "Milch"),
    ("night", "noche", "nuit", "Nacht"),
    ("green", "verde", "vert", "grün"),
    ("school", "escuela", "école", "Schule"),
    ("window", "ventana", "fenêtre", "Fenster"),
    ("thank you", "gracias", "merci", "danke"),
)
"""English, Spanish, French, German."""

JOBS: tuple[tuple[str, str, str], ...] = (
    ("baker", "makes bread, rolls and cakes", "a bakery"),
    ("nurse", "cares for people who are ill", "a hospital"),
    ("teacher", "helps students learn", "a school"),
    ("carpenter", "builds and repairs things of wood", "a workshop"),
    ("pilot", "flies planes", "a cockpit"),
    ("farmer", "grows crops and raises animals", "a farm"),
    ("librarian", "looks after books and helps readers", "a library"),
    ("plumber", "installs and repairs pipes", "many different houses"),
    ("chef", "plans menus and cooks meals", "a restaurant"),
    ("gardener", "plants and waters flowers and trees", "parks and gardens"),
    ("astronomer", "studies stars and planets", "an observatory"),
    ("editor", "improves and checks texts", "an office"),
)
"""Job, what it does, where."""

HOWTOS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "make a cup of tea",
        (
            "Boil fresh water.",
            "Put a tea bag in a cup.",
            "Pour the hot water over it.",
            "Wait for three minutes.",
            "Take out the bag and add milk or honey.",
        ),
    ),
    (
        "plant a tree",
        (
            "Choose a sunny place.",
            "Dig a hole twice as wide as the roots.",
            "Set the tree upright.",
            "Fill the hole with soil.",
            "Water it well every week.",
        ),
    ),
    (
        "boil an egg",
        (
            "Bring a pot of water to a boil.",
            "Lower the egg in with a spoon.",
            "Cook it for seven minutes.",
            "Cool it in cold water.",
            "Peel it and add a little salt.",
        ),
    ),
    (
        "clean a window",
        (
            "Mix warm water with a drop of soap.",
            "Wipe the dust off the frame.",
            "Wash the glass.",
            "Pull the water off from top to bottom.",
            "Dry the edges with a cloth.",
        ),
    ),
    (
        "learn new words",
        (
            "Pick ten words a day.",
            "Write each one on a card.",
            "Read them aloud.",
            "Use each word in a sentence.",
            "Repeat the hard ones tomorrow.",
        ),
    ),
    (
        "bake bread",
        (
            "Mix flour, water, salt and yeast.",
            "Knead the dough for ten minutes.",
            "Let it rest for an hour.",
            "Shape a loaf.",
            "Bake it until the crust is brown.",
        ),
    ),
    (
        "fix a flat tire on a bike",
        (
            "Take the wheel off.",
            "Pull out the tube.",
            "Find the hole and clean it.",
            "Glue a patch over the hole.",
            "Put everything back and pump it up.",
        ),
    ),
    (
        "write a good letter",
        (
            "Decide what you want to say.",
            "Start with a friendly greeting.",
            "Keep one idea in each paragraph.",
            "Read it once more.",
            "Sign it with your name.",
        ),
    ),
    (
        "sleep better",
        (
            "Go to bed at the same time every day.",
            "Keep the room cool and dark.",
            "Put the phone away.",
            "Avoid coffee in the evening.",
            "Read a few quiet pages.",
        ),
    ),
    (
        "paint a wall",
        (
            "Cover the floor.",
            "Tape the edges.",
            "Fill small holes.",
            "Paint the corners with a brush.",
            "Roll the rest in even strips.",
        ),
    ),
)
"""A task and its steps, in order."""

TERMS: tuple[tuple[str, str, str], ...] = (
    ("gravity", "the force that pulls things toward each other", "It keeps the moon on its path around the Earth."),
    ("evaporation", "the change of a liquid into a gas", "A puddle dries in the sun because of it."),
    ("photosynthesis", "the way plants make sugar from light, water and air", "It also gives us oxygen."),
    ("an island", "a piece of land with water all around it", "Iceland is a large one."),
    ("a budget", "a plan for how to spend money", "It helps you to save for things that matter."),
    ("a volcano", "a mountain from which hot rock and gas can escape", "Some of them sleep for hundreds of years."),
    ("an atom", "the smallest piece of an element", "Everything around us is made of them."),
    ("a glacier", "a slow river of ice", "It shapes whole valleys over time."),
    ("a metaphor", "a way to describe one thing as if it were another", "Time is money is a famous one."),
    ("an eclipse", "a moment when one body in space hides another", "The moon can hide the sun for some minutes."),
    ("a compass", "a tool that shows where north is", "Sailors have used it for many centuries."),
    ("a fossil", "the trace of a plant or animal from long ago", "We find many of them in old stone."),
)
"""A term, what it is, one more sentence."""

UNITS: tuple[tuple[str, str, int], ...] = (
    ("meters", "centimeters", 100),
    ("kilometers", "meters", 1000),
    ("kilograms", "grams", 1000),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("weeks", "days", 7),
    ("days", "hours", 24),
    ("years", "months", 12),
    ("dozens", "pieces", 12),
)
"""A unit, a smaller one, how many of these it holds."""
