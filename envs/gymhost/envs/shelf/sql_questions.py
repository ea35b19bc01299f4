"""Small databases and questions about them: what is asked, and the query that answers it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["QUESTIONS", "Question", "make_database", "make_question", "solve"]

CITIES = ("Ardal", "Brehm", "Cosna", "Dwyer", "Elvas", "Fossum")
CATEGORIES = ("garden", "kitchen", "office", "toys")
GENRES = ("crime", "history", "poetry", "travel")
NAMES = ("Ada", "Bruno", "Clara", "Dario", "Edith", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Lars", "Mira")
FAMILIES = ("Abel", "Bosch", "Chen", "Diaz", "Egede", "Fink", "Gruber", "Holm", "Ivers", "Jung")
THINGS = ("lamp", "bowl", "chair", "spade", "kite", "clock", "pen", "mat", "drum", "vase", "rake", "mug")

SHOP = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, category TEXT NOT NULL, price INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers, day TEXT NOT NULL);
CREATE TABLE items (
    order_id INTEGER NOT NULL REFERENCES orders, product_id INTEGER NOT NULL REFERENCES products,
    quantity INTEGER NOT NULL
);
"""
LIBRARY = """
CREATE TABLE authors (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE books (
    id INTEGER PRIMARY KEY, author_id INTEGER NOT NULL REFERENCES authors, title TEXT NOT NULL, genre TEXT NOT NULL,
    year INTEGER NOT NULL
);
CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT NOT NULL, joined INTEGER NOT NULL);
CREATE TABLE loans (
    book_id INTEGER NOT NULL REFERENCES books, member_id INTEGER NOT NULL REFERENCES members, taken TEXT NOT NULL,
    returned TEXT
);
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A kind of question.

    Attributes:
        database: The kind of database that it is asked of: `shop` or `library`.
        text: What is asked; `{0}` and `{1}` stand for what differs.
        query: What answers it, with `:0` and `:1` in the same places.
        draw: Draws what differs.
    """

    database: str
    text: str
    query: str
    draw: Callable[[Random], Sequence[str | int]] = lambda draw: ()

    def ask(self, values: Sequence[str | int]) -> str:
        """Returns the question."""
        return " ".join(self.text.format(*values).split())

    def answer(self, values: Sequence[str | int]) -> str:
        """Returns the query."""
        return re.sub(r":(\d)", lambda found: str(values[int(found[1])]), " ".join(self.query.split()))

    @property
    def pattern(self) -> re.Pattern[str]:
        """Finds the question, and what differs in it."""
        return re.compile(re.sub(r"\\\{\d\\\}", r"([\\w-]+)", re.escape(" ".join(self.text.split()))))


def make_question(seed: str) -> tuple[Question, Sequence[str | int]]:
    """Returns the question of a seed and what differs in it, the same each time."""
    draw = Random(f"question {seed}")
    question = draw.choice(QUESTIONS)
    return question, question.draw(draw)


def solve(text: str) -> str | None:
    """Returns the query that answers a question, or None."""
    for question in QUESTIONS:
        found = question.pattern.search(text)
        if found is not None:
            return question.answer(found.groups())
    return None


def make_database(kind: str, seed: str) -> str:
    """Returns the SQL that makes a database of a kind, the same for the same seed."""
    draw = Random(f"database {seed}")
    return (_shop if kind == "shop" else _library)(draw)


def _shop(draw: Random) -> str:
    people = _people(draw, draw.randint(12, 24))
    customers = [(number, name, draw.choice(CITIES)) for number, name in enumerate(people, 1)]
    things = draw.sample([(thing, category) for thing in THINGS for category in CATEGORIES], 20)
    products = [
        (number, f"{category} {thing}", category, draw.randint(2, 90))
        for number, (thing, category) in enumerate(things, 1)
    ]
    orders = [(number, draw.randint(1, len(customers) - 2), _day(draw)) for number in range(1, draw.randint(40, 70))]
    items = [
        (order, product, draw.randint(1, 6))
        for order, *_ in orders
        for product in draw.sample(range(1, len(products) - 1), draw.randint(1, 4))
    ]
    return SHOP + "".join(
        _insert(table, rows)
        for table, rows in (("customers", customers), ("products", products), ("orders", orders), ("items", items))
    )


def _library(draw: Random) -> str:
    authors = [(number, name) for number, name in enumerate(_people(draw, 12), 1)]
    books = [
        (number, draw.randint(1, 11), f"The {draw.choice(THINGS)} of {draw.choice(CITIES)} {number}", *_genre(draw))
        for number in range(1, draw.randint(30, 50))
    ]
    members = [
        (number, name, draw.randint(2010, 2024)) for number, name in enumerate(_people(draw, draw.randint(10, 20)), 1)
    ]
    loans = [
        (
            draw.randint(1, len(books) - 2),
            draw.randint(1, len(members) - 2),
            _day(draw),
            draw.choice([None, _day(draw)]),
        )
        for _ in range(draw.randint(50, 90))
    ]
    return LIBRARY + "".join(
        _insert(table, rows)
        for table, rows in (("authors", authors), ("books", books), ("members", members), ("loans", loans))
    )


def _people(draw: Random, number: int) -> list[str]:
    return draw.sample([f"{name} {family}" for name in NAMES for family in FAMILIES], number)


def _genre(draw: Random) -> tuple[str, int]:
    return draw.choice(GENRES), draw.randint(1950, 2023)


def _day(draw: Random) -> str:
    return f"2024-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"


def _insert(table: str, rows: Sequence[tuple[str | int | None, ...]]) -> str:
    values = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
    return f"INSERT INTO {table} VALUES {values};\n"


def _literal(value: str | int | None) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


QUESTIONS = (
    Question(
        "shop",
        "How many customers live in {0}?",
        "SELECT COUNT(*) FROM customers WHERE city = ':0'",
        lambda draw: [draw.choice(CITIES)],
    ),
    Question(
        "shop",
        "What are the names of the {0} most expensive products of the category {1}, the most expensive first, and by "
        "name where prices are equal?",
        "SELECT name FROM products WHERE category = ':1' ORDER BY price DESC, name LIMIT :0",
        lambda draw: [draw.randint(2, 4), draw.choice(CATEGORIES)],
    ),
    Question(
        "shop",
        "How much money, price times quantity, did customers from {0} spend in all? Answer 0 if nothing.",
        """SELECT COALESCE(SUM(price * quantity), 0) FROM items JOIN products ON products.id = product_id
        JOIN orders ON orders.id = order_id JOIN customers ON customers.id = customer_id WHERE city = ':0'""",
        lambda draw: [draw.choice(CITIES)],
    ),
    Question(
        "shop",
        "What are the names of the customers who never ordered anything, in the order of the alphabet?",
        "SELECT name FROM customers WHERE id NOT IN (SELECT customer_id FROM orders) ORDER BY name",
    ),
    Question(
        "shop",
        "What are the names of the products that were never ordered, in the order of the alphabet?",
        "SELECT name FROM products WHERE id NOT IN (SELECT product_id FROM items) ORDER BY name",
    ),
    Question(
        "shop",
        "Which category brought in the most money, price times quantity, in orders of the month 2024-{0}?",
        """SELECT category FROM items JOIN products ON products.id = product_id JOIN orders ON orders.id = order_id
        WHERE day LIKE '2024-:0-%' GROUP BY category ORDER BY SUM(price * quantity) DESC, category LIMIT 1""",
        lambda draw: [f"{draw.randint(1, 12):02}"],
    ),
    Question(
        "shop",
        "What are the name and the number of orders of each customer with at least {0} orders, in the order of the "
        "names?",
        """SELECT name, COUNT(*) FROM customers JOIN orders ON customer_id = customers.id GROUP BY customers.id
        HAVING COUNT(*) >= :0 ORDER BY name""",
        lambda draw: [draw.randint(3, 5)],
    ),
    Question(
        "library",
        "How many books of the genre {0} appeared before {1}?",
        "SELECT COUNT(*) FROM books WHERE genre = ':0' AND year < :1",
        lambda draw: [draw.choice(GENRES), draw.randint(1970, 2010)],
    ),
    Question(
        "library",
        "What are the names of the authors who wrote at least {0} books, in the order of the alphabet?",
        """SELECT authors.name FROM authors JOIN books ON author_id = authors.id GROUP BY authors.id
        HAVING COUNT(*) >= :0 ORDER BY authors.name""",
        lambda draw: [draw.randint(2, 5)],
    ),
    Question(
        "library",
        "What are the titles of the books that are on loan and not returned yet, each once, in the order of the "
        "alphabet?",
        "SELECT DISTINCT title FROM books JOIN loans ON book_id = books.id WHERE returned IS NULL ORDER BY title",
    ),
    Question(
        "library",
        "How many different members who joined in {0} or later have taken out a book of the genre {1}?",
        """SELECT COUNT(DISTINCT member_id) FROM loans JOIN members ON members.id = member_id
        JOIN books ON books.id = book_id WHERE joined >= :0 AND genre = ':1'""",
        lambda draw: [draw.randint(2011, 2022), draw.choice(GENRES)],
    ),
    Question(
        "library",
        "For each genre, in the order of the alphabet: how many loans of its books were there in 2024-{0} or later?",
        """SELECT genre, SUM(taken >= '2024-:0') FROM loans JOIN books ON books.id = book_id
        GROUP BY genre ORDER BY genre""",
        lambda draw: [f"{draw.randint(2, 11):02}"],
    ),
)
