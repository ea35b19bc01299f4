"""A small world that never was, told in some hundreds of short articles for an environment to search in.

All of it is made by code from one seed, so that it is the same everywhere and agrees with itself.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

__all__ = ["RELATIONS", "Entity", "Relation", "World", "world"]


@dataclass(frozen=True, slots=True)
class Relation:
    """What an article may say of what it is about.

    Attributes:
        name: What `Entity.facts` calls it.
        source: The kind of what it is said of.
        target: The kind of what it names; None where it is a number.
        ask: A question for it; `{}` stands for what it is asked of.
        phrase: How a longer question speaks of what it names; None where it is a number.
        sentences: Ways to say it, of `{subject}` and `{object}`.
    """

    name: str
    source: str
    target: str | None
    ask: str
    phrase: str | None
    sentences: tuple[str, ...]


RELATIONS = (
    Relation(
        "author",
        "work",
        "person",
        "Who is the author of {}?",
        "the author of {}",
        ("{subject} was written by {object}.", "The author of {subject} is {object}."),
    ),
    Relation(
        "published",
        "work",
        None,
        "In which year was {} published?",
        None,
        ("It was published in {object}.", "Its first edition is of the year {object}."),
    ),
    Relation(
        "birthplace",
        "person",
        "town",
        "In which town was {} born?",
        "the birthplace of {}",
        ("{subject} was born in {object}.", "{subject} comes from {object}."),
    ),
    Relation(
        "born",
        "person",
        None,
        "In which year was {} born?",
        None,
        ("The year of birth was {object}.", "In the parish's register the birth stands under {object}."),
    ),
    Relation(
        "teacher",
        "person",
        "person",
        "Who taught {}?",
        "the teacher of {}",
        ("{subject} was a pupil of {object}.", "{subject} learned the trade from {object}."),
    ),
    Relation(
        "employer",
        "person",
        "firm",
        "Which firm employed {}?",
        "the employer of {}",
        ("For many years {subject} was employed by {object}.", "{subject} earned a living at {object}."),
    ),
    Relation(
        "founder",
        "firm",
        "person",
        "Who founded {}?",
        "the founder of {}",
        ("{subject} was founded by {object}.", "The founder of {subject} was {object}."),
    ),
    Relation(
        "founded",
        "firm",
        None,
        "In which year was {} founded?",
        None,
        ("Business began in {object}.", "The first order was taken in {object}."),
    ),
    Relation(
        "seat",
        "firm",
        "town",
        "In which town does {} have its seat?",
        "the seat of {}",
        ("{subject} has its seat in {object}.", "The yard of {subject} lies at the edge of {object}."),
    ),
    Relation(
        "mayor",
        "town",
        "person",
        "Who is the mayor of {}?",
        "the mayor of {}",
        ("The mayor of {subject} is {object}.", "{subject} chose {object} as its mayor."),
    ),
    Relation(
        "river",
        "town",
        "river",
        "On which river does {} lie?",
        "the river of {}",
        ("{subject} lies on the {object}.", "The {object} flows through {subject}."),
    ),
    Relation(
        "chartered",
        "town",
        None,
        "In which year was {} given its charter?",
        None,
        ("Its charter is of the year {object}.", "It was given its charter in {object}."),
    ),
    Relation(
        "people",
        "town",
        None,
        "How many people live in {}?",
        None,
        ("At the last count {object} people lived there.", "It has {object} inhabitants."),
    ),
    Relation(
        "length",
        "river",
        None,
        "How many kilometres long is {}?",
        None,
        ("It is {object} kilometres long.", "From source to mouth it measures {object} kilometres."),
    ),
)


@dataclass(slots=True)
class Entity:
    """Something that has an article.

    Attributes:
        kind: `person`, `town`, `river`, `firm` or `work`.
        name: Its name, which is the article's title.
        facts: What is so of it, by the name of the relation: names and numbers.
    """

    kind: str
    name: str
    facts: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class World:
    """All that there is.

    Attributes:
        entities: By name.
        articles: The text of each article, by its title.
    """

    entities: dict[str, Entity]
    articles: dict[str, str]


@functools.cache
def world() -> World:
    """Returns the world; it is made once a process."""
    random = Random("a small world")
    name = _namer(random)
    rivers = [Entity("river", name()) for _ in range(20)]
    towns = [Entity("town", name()) for _ in range(60)]
    people = [Entity("person", f"{name()} {name()}") for _ in range(150)]
    firms = [Entity("firm", f"{name()} {random.choice(_TRADES)}") for _ in range(50)]
    titles = [f"The {adjective} {noun}" for adjective in _ADJECTIVES for noun in _NOUNS]
    works = [Entity("work", title) for title in random.sample(titles, 100)]

    for river in rivers:
        river.facts["length"] = str(random.randint(40, 900))
    for town in towns:
        town.facts |= {
            "mayor": random.choice(people).name,
            "river": random.choice(rivers).name,
            "chartered": str(random.randint(1100, 1500)),
            "people": str(random.randint(2_000, 90_000)),
        }
    # In the order of their birth, so that teachers, founders and authors were there in time.
    for number, person in enumerate(people):
        person.facts |= {"birthplace": random.choice(towns).name, "born": str(1500 + 2 * number + random.randint(0, 1))}
        if number >= 10:
            person.facts["teacher"] = people[random.randrange(max(0, number - 30), number - 9)].name
    for firm in firms:
        founder = random.choice(people)
        founded = int(founder.facts["born"]) + random.randint(20, 60)
        firm.facts |= {"founder": founder.name, "founded": str(founded), "seat": random.choice(towns).name}
    for person in people:
        there = [firm for firm in firms if int(firm.facts["founded"]) <= int(person.facts["born"]) + 40]
        if there:
            person.facts["employer"] = random.choice(there).name
    for work in works:
        author = random.choice(people)
        published = int(author.facts["born"]) + random.randint(20, 70)
        work.facts |= {"author": author.name, "published": str(published)}

    entities = {entity.name: entity for entity in (*rivers, *towns, *people, *firms, *works)}
    return World(entities, {entity.name: _article(random, entity) for entity in entities.values()})


def _article(random: Random, entity: Entity) -> str:
    told = [relation for relation in RELATIONS if relation.source == entity.kind and relation.name in entity.facts]
    sentences = [
        random.choice(relation.sentences).format(subject=entity.name, object=entity.facts[relation.name])
        for relation in told
    ]
    sentences += random.sample(_COLOUR[entity.kind], 2)
    random.shuffle(sentences)
    # What comes first has the name in it, so that "it" is understood.
    sentences.insert(0, f"{entity.name} is {_WHAT[entity.kind]}.")
    return " ".join(sentences)


def _namer(random: Random) -> Callable[[], str]:
    """Returns a function that returns another word each time, which sounds like a name."""
    given: set[str] = set()

    def name() -> str:
        while True:
            word = "".join(random.choice(_ONSETS) + random.choice(_VOWELS) for _ in range(random.choice((2, 2, 3))))
            word = (word + random.choice(_CODAS)).capitalize()
            if word not in given:
                given.add(word)
                return word

    return name


_ONSETS: Sequence[str] = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
)
_VOWELS: Sequence[str] = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS: Sequence[str] = ("", "", "l", "m", "n", "r", "sk", "th")
_TRADES = ("Foundry", "Mills", "Press", "Looms", "Glassworks", "Shipyard", "Brewery", "Quarry", "Tannery", "Bindery")
_ADJECTIVES = (
    "Amber",
    "Broken",
    "Crooked",
    "Distant",
    "Frozen",
    "Gilded",
    "Hollow",
    "Patient",
    "Quiet",
    "Scarlet",
    "Twelfth",
    "Wandering",
)
_NOUNS = (
    "Bridge",
    "Candle",
    "Gardener",
    "Harbour",
    "Ladder",
    "Lantern",
    "Orchard",
    "Sparrow",
    "Staircase",
    "Tailor",
    "Weather",
    "Winter",
)
_WHAT = {
    "river": "a river of the low country",
    "town": "a town with a market and a mayor",
    "person": "remembered in several chronicles",
    "firm": "a firm that still trades",
    "work": "a book that is still read",
}
_COLOUR = {
    "river": (
        "Barges were towed on it until the railway came.",
        "In hard winters it freezes over and a fair is held on the ice.",
        "Its eels are smoked and sold far away.",
        "Three ferries cross it where there is no bridge.",
    ),
    "town": (
        "The market is held on the second day of the week.",
        "A fire destroyed the older of its two halls.",
        "Its bell is rung when the gates are shut.",
        "Travellers praise the bread and complain about the beds.",
        "The walls were pulled down to build the school.",
    ),
    "person": (
        "Letters from that time are kept in the archive.",
        "A portrait hangs in the hall of the guild.",
        "Most of what is known comes from a diary.",
        "A quarrel about a garden wall went through three courts.",
        "Neighbours remembered a fondness for chess.",
    ),
    "firm": (
        "Its mark is a heron in a circle.",
        "A strike over candles lasted eleven weeks.",
        "Apprentices were taken at the age of fourteen.",
        "Its account books have come down to us complete.",
    ),
    "work": (
        "Critics were slow to like it.",
        "A translation made it known abroad.",
        "The last chapter was left out of the second printing.",
        "It is told by a narrator who is never named.",
    ),
}
