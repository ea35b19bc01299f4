"""TextArena's games: `textarena:Mastermind-v0`, or `textarena:Sudoku*` for several.

One who plays alone needs nothing else. In a game for more, the policy has one seat, and another that is named plays the
rest: `textarena:TicTacToe-v0?players=2&opponent=my_players:first_free`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from gymhost.envs import packages
from gymhost.envs.adapters.support import add, chosen, imported, needed, values
from gymhost.envs.adapters.text import Reply, TextEnv
from gymhost.envs.packages import Package
from gymhost.envs.randomness import OwnRandom
from gymhost.envs.tasks import Task

__all__ = ["TextArena", "about", "register"]


class TextArena(TextEnv):
    """A game of TextArena, in the words of TextArena.

    What a game of the usual form says grows from turn to turn by all that was said and done: as the conversation has it
    already, only what is new is told, and the policy's own actions are not repeated. What other forms say, such as the
    `-train` ones, is told as it is. The reward is the seat's own, paid at the end.

    Args:
        name: What TextArena calls the game.
        options: What the game is made with.
        players: How many play.
        opponent: Returns who plays the other seats: takes what TextArena shows to that player, and returns its action.
            None where there are no others.
        seat: Which player the policy is; the first is 0.
        task: Nothing: games are chosen by seeds.
        split: Nothing.

    Raises:
        ValueError: There is no such seat.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        players: int,
        opponent: Callable[[], Callable[[str], str]] | None,
        /,
        *,
        seat: int = 0,
        task: int | None = None,
        split: str | None = None,
    ) -> None:
        super().__init__(task=task, split=split)
        if not 0 <= seat < players:
            raise ValueError(f"the seats of {name} with {players} players are 0 to {players - 1}, not {seat}")
        self._arena: Any = needed("textarena", "textarena")
        self._players = players
        self._seat = seat
        self._make_opponent = opponent
        self._random = OwnRandom()
        with self._random.active():
            self._game: Any = self._arena.make(name, **options)
        self._core: Any = self._game
        grows = True
        while isinstance(self._core, self._arena.core.Wrapper):
            if isinstance(self._core, self._arena.core.ObservationWrapper):
                grows = type(self._core) is self._arena.wrappers.LLMObservationWrapper
            self._core = self._core.env
        self._grows = grows

    def begin(self, task: Task, seed: int) -> Reply:
        """Begins a game, as TextArena does with this seed."""
        self._opponent = None if self._make_opponent is None else self._make_opponent()
        with self._random.active():
            self._game.reset(num_players=self._players, seed=seed)
            if self._others_play():
                raise RuntimeError(f"the game ended before seat {self._seat} had a turn: {self._core.state.game_info}")
            return Reply(self._news())

    def play(self, text: str) -> Reply:
        """Makes a move; the others answer until it is the policy's turn again."""
        with self._random.active():
            done, info = self._game.step(text)
            if not done and not self._others_play():
                return Reply(self._news(), info=info)
            rewards, about = self._game.close()
            said = self._told(self._core.state.observations[self._seat])
            return Reply(said, float(rewards[self._seat]), terminated=True, info={"game": about[self._seat]})

    def _others_play(self) -> bool:
        """Has the others play until it is the policy's turn; returns whether the game has ended."""
        done = False
        while not done and self._core.state.current_player_id != self._seat:
            _, seen = self._game.get_observation()
            if self._opponent is None:
                raise RuntimeError(f"{self._core.env_id} has others to play: ?opponent=MODULE:FUNCTION names who does")
            done, _ = self._game.step(self._opponent(seen))
        return done

    def _news(self) -> str:
        """Returns what the policy sees now."""
        if self._grows:
            return self._told(self._core.get_observation()[1])
        return self._game.get_observation()[1]

    def _told(self, messages: list[tuple[int, str, Any]]) -> str:
        """Returns messages as TextArena writes them for language models, but for the policy's own actions."""
        roles: dict[int, str] = self._core.state.role_mapping
        game, action = self._arena.GAME_ID, self._arena.ObservationType.PLAYER_ACTION
        return "\n".join(
            f"[{'GAME' if sender == game else roles.get(sender, f'Player {sender}')}] {message}"
            for sender, message, kind in messages
            if sender != self._seat or kind is not action
        )


def register(name: str, *, players: str = "", opponent: str = "", **options: str) -> list[str]:
    """Registers games of TextArena.

    Args:
        name: What TextArena calls it; with a `*`, several.
        players: How many play; without it 1, or 2 where there is an opponent.
        opponent: `module:name` of who plays the other seats: a function that takes what TextArena shows to that player
            and returns its action, or a class of such, of which each episode has one.
        **options: What the game is made with.

    Raises:
        ModuleNotFoundError: textarena is not installed.
        ValueError: There is no such game, or an option can't be.
    """
    registry: dict[str, Any] = needed("textarena", "textarena").envs.registration.ENV_REGISTRY
    number = int(players) if players else 2 if opponent else 1
    if number > 1 and not opponent:
        raise ValueError(f"of {number} players the policy is one: ?opponent=MODULE:FUNCTION names who the others are")
    others = imported(opponent) if opponent else None
    given = values(options)
    return [
        add(
            "textarena",
            each,
            functools.partial(TextArena, each, given, number, None if others is None else _maker(others)),
            description=f"TextArena's {each}.",
            order_enforce=False,
        )
        for each in chosen("textarena", name, registry)
    ]


def about() -> Package:
    """Returns TextArena's package."""
    return packages.installed("textarena")


def _maker(others: Any) -> Callable[[], Callable[[str], str]]:
    return others if isinstance(others, type) else lambda: others
