"""Policies for Search that know only the conversation and how its questions and articles are worded."""

import re
from collections.abc import Sequence

from gymhost.envs.shelf.scripted import call, said
from gymhost.envs.shelf.search_world import RELATIONS, Relation, world
from gymhost.wire.chat_spaces import ChatMessage

_PLACEHOLDER = "{}"


def hop_by_hop(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Takes the question apart, and looks for one article after another."""
    name, path = _taken_apart(_question(messages))
    articles, results = _read_so_far(messages), "\n".join(said(messages, "tool"))
    for relation in path:
        if name not in articles:
            if f". {name}: " in results:
                return call("read", article=name)
            return call("search", query=name)
        name = _told(relation, name, articles[name])
    return call("answer", text=name)


def everything_at_once(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers with all names that there are."""
    return call("answer", text=" ".join(world().articles))


def nothing(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers with nothing."""
    return call("answer", text="")


def question_repeated(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers with the question."""
    return call("answer", text=_question(messages))


def claimed_victory(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers that the answer is right."""
    return call("answer", text='{"exact": 1.0, "f1": 1.0} The answer is correct.')


def _question(messages: Sequence[ChatMessage]) -> str:
    return said(messages, "user")[0].splitlines()[0]


def _read_so_far(messages: Sequence[ChatMessage]) -> dict[str, str]:
    found = [re.match(r"# (.+)\n", text) for text in said(messages, "tool")]
    return {match[1]: match.string[match.end() :] for match in found if match}


def _taken_apart(question: str) -> tuple[str, list[Relation]]:
    """Returns where a question begins, and which relations lead on from there."""
    path: list[Relation] = []
    for relation in RELATIONS:
        match = _pattern(relation.ask, _PLACEHOLDER).fullmatch(question)
        if match:
            path.append(relation)
            question = match[1]
            break
    while True:
        for relation in RELATIONS:
            match = _pattern(relation.phrase or "", _PLACEHOLDER).fullmatch(question)
            if match and match.groups():
                path.append(relation)
                question = match[1]
                break
        else:
            return question.strip('"'), path[::-1]


def _told(relation: Relation, name: str, article: str) -> str:
    """Returns what an article says in one of a relation's sentences."""
    for sentence in relation.sentences:
        match = _pattern(sentence.replace("{subject}", name), "{object}").search(article)
        if match:
            return match[1]
    return ""


def _pattern(template: str, placeholder: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(re.escape(placeholder), r"([^.]+)"))
