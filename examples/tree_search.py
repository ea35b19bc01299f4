"""Plays Connect Four at random, and with a Monte Carlo tree search in forks of the game: `python tree_search.py`."""

import argparse
import asyncio
import math
import random
import re
from dataclasses import dataclass, field

from gymhost.client import RemoteServer, Session, connect

ROW = re.compile(r"^[XO.](?: [XO.]){6}$", re.MULTILINE)


@dataclass
class Node:
    """A position: a session that stands there, and what playouts from it came to."""

    session: Session
    board: str
    ended: bool = False
    value: float = 0.0
    visits: int = 0
    children: dict[int, "Node"] = field(default_factory=dict[int, "Node"])

    @property
    def mean(self) -> float:
        return self.value / self.visits

    @property
    def free(self) -> list[int]:
        """The columns that are not full, from 1."""
        return [column for column, disc in enumerate(ROW.findall(self.board)[0].split(), 1) if disc == "."]

    async def drop(self, column: int) -> None:
        """Drops a disc, and lets the opponent answer."""
        messages, self.value, terminated, truncated, _ = await self.session.call_tool("drop", {"column": column})
        self.board, self.ended = messages[0]["content"], terminated or truncated

    async def forked(self, number: int) -> list["Node"]:
        """As many more that stand in the same position."""
        return [Node(fork, self.board) for fork in await self.session.fork(number)]

    async def close(self) -> None:
        await asyncio.gather(self.session.close(), *(child.close() for child in self.children.values()))


async def played_out(node: Node) -> float:
    """Plays on at random to the end, and returns what that is worth."""
    while not node.ended:
        await node.drop(random.choice(node.free))
    await node.close()
    return node.value


async def expand(node: Node, playouts: int) -> None:
    """Tries each move in a fork, and plays it out in more of them, all side by side."""
    node.children = dict(zip(node.free, await node.forked(len(node.free)), strict=True))

    async def tried(column: int, child: Node) -> None:
        await child.drop(column)
        child.visits = playouts
        if child.ended:
            child.value *= playouts
        else:
            child.value = sum(await asyncio.gather(*map(played_out, await child.forked(playouts))))

    await asyncio.gather(*(tried(*each) for each in node.children.items()))


async def search(root: Node, rounds: int, playouts: int) -> Node:
    """Looks into what is promising, or was hardly looked at; returns the best next position, and closes the others."""
    for _ in range(rounds):
        path = [root]
        while path[-1].children:
            tries = math.log(sum(child.visits for child in path[-1].children.values()))
            path.append(max(path[-1].children.values(), key=lambda n, t=tries: n.mean + math.sqrt(t / n.visits)))
        leaf = path[-1]
        if not leaf.ended:
            await expand(leaf, playouts)
        # A position is worth what its best move is.
        worth = max((child.mean for child in leaf.children.values()), default=leaf.value / max(leaf.visits, 1))
        for node in path:
            node.value += worth * playouts
            node.visits += playouts
    column = max(root.children, key=lambda column: (root.children[column].visits, root.children[column].mean))
    chosen = root.children.pop(column)
    await root.close()
    return chosen


async def play(server: RemoteServer, game: int, rounds: int, playouts: int) -> bool:
    """Plays a game; with no rounds at random."""
    session = await server.session("gymhost/ConnectFour-v0").open()
    messages, _ = await session.reset(options={"task": game, "split": "test"})
    node = Node(session, messages[-1]["content"])
    while not node.ended:
        if rounds:
            node = await search(node, rounds, playouts)
        else:
            await node.drop(random.choice(node.free))
    await node.close()
    return "You win" in node.board


async def main(server: str | None, games: int, rounds: int, playouts: int) -> None:
    async with connect(server) as remote:
        for name, how in (("at random", 0), ("with a search", rounds)):
            won = sum([await play(remote, game, how, playouts) for game in range(games)])
            print(f"{name}: {won} of {games} games won ({won / games:.0%})")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--server", metavar="HOST:PORT", help="where the games are; default: an embedded server")
parser.add_argument("--games", type=int, default=10)
parser.add_argument("--rounds", type=int, default=12, help="positions that are looked into for each move")
parser.add_argument("--playouts", type=int, default=4, help="games that are played out from each position")
asyncio.run(main(**vars(parser.parse_args())))
