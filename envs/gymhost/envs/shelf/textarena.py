"""TextArena: the single-player games of the package `textarena`."""

import hashlib
import random
from typing import Any

from gymhost.envs.randomness import OwnRandom
from gymhost.envs.rubrics import rubric
from gymhost.envs.shelf.extra import needed
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolError, tool

__all__ = ["GAMES", "TextArena"]

GAMES = ("2048", "FifteenPuzzle", "FrozenLake", "GuessTheNumber", "LightsOut", "Mastermind", "Sudoku")
"""The games: those for one player that start differently each time, are won by skill, and need no download."""

_TRAINING_TASKS = 100_000
_TEST_TASKS = 1_000
_HELD_OUT = 4
_MOST_SEEDS = 400
_LONGEST_ACTION = 1_000


class TextArena(ToolEnv):
    """A game for one player of TextArena.

    The reward is 1 for a game that was won: TextArena's part for one that was not can be had for nothing in some games,
    and counts only where it is asked for. How a game starts decides whether it is one to train or to test on.
    """

    public_fields = ("game",)
    max_turns = 300
    expert = "gymhost.envs.shelf.textarena_expert:playing"
    cheats = (
        "gymhost.envs.shelf.textarena_expert:everything_at_once",
        "gymhost.envs.shelf.textarena_expert:nothing",
        "gymhost.envs.shelf.textarena_expert:prompt_repeated",
        "gymhost.envs.shelf.textarena_expert:claimed_victory",
    )

    def __init__(
        self,
        *,
        game: str = "Mastermind-v0",
        partial: bool = False,
        task: int | None = None,
        split: str | None = None,
    ) -> None:
        """Makes the game.

        Args:
            game: TextArena's id of it, such as `Mastermind-v0` or `Sudoku-v0-easy`: one of `GAMES`, in any of the
                variants that TextArena has.
            partial: Whether TextArena's own reward counts, which may pay a part for a game that was not won.
            task: The task to play unless a reset says otherwise.
            split: The split that it is in.

        Raises:
            ModuleNotFoundError: textarena is not installed.
            ValueError: There is no such game.
        """
        super().__init__(task=task, split=split)
        if game.partition("-v")[0] not in GAMES:
            raise ValueError(f"game is a variant of one of {', '.join(GAMES)}, such as Mastermind-v0, not {game!r}")
        self._textarena = needed("textarena", "gymhost/TextArena-v0")
        # The bare game: what wrappers would do for a conversation is done here.
        self._id = game if game.endswith("-raw") else f"{game}-raw"
        known: list[str] = sorted(self._textarena.envs.registration.ENV_REGISTRY)
        if self._id not in known:
            variants = [
                name for name in known if name.startswith(f"{game.partition('-v')[0]}-v") and "-raw" not in name
            ]
            raise ValueError(f"TextArena has no game {game!r}; it has {', '.join(variants)}")
        self.game = game
        self.partial = partial

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits: no start of a game is in both."""
        return {
            "train": Tasks.generate(lambda index: {"game": index, "held_out": False}, _TRAINING_TASKS),
            "test": Tasks.generate(lambda index: {"game": index, "held_out": True}, _TEST_TASKS),
        }

    def setup(self, task: Task) -> None:
        """Starts the first game of those that the task names whose start belongs to its split."""
        self._won = 0.0
        self._random = OwnRandom()
        for attempt in range(_MOST_SEEDS):
            with self._random.active():
                random.seed(f"textarena {task['game']} {attempt}")
                self._arena: Any = self._textarena.make(self._id)
                self._arena.reset(num_players=1)
            start = repr(sorted(self._arena.state.game_state.items(), key=lambda item: str(item[0])))
            if (hashlib.sha256(start.encode()).digest()[0] % _HELD_OUT == 0) == task["held_out"]:
                return
        raise ValueError(f"{self.game} has too few different starts for a split of its own to test on")

    def prompt(self, task: Task) -> str:
        """Tells what TextArena says of the game."""
        return f"{self._news()}\n\nMove with the tool act."

    @tool
    def act(self, action: str) -> str:
        """Makes a move.

        Args:
            action: The move, as the rules want it, such as [2 1 4 5]; brackets may be left out.
        """
        if len(action) > _LONGEST_ACTION:
            raise ToolError(f"an action has at most {_LONGEST_ACTION} characters")
        if "[" not in action:
            action = f"[{action}]"
        with self._random.active():
            try:
                done, _ = self._arena.step(action)
            except Exception:  # noqa: BLE001 - a model can't get out of a game by an action that the game chokes on
                self.finish(won=False)
                return f"TextArena can't play {action[:50]!r}. The game is lost."
        text = self._news()
        return f"{text}\n{self._end()}".strip() if done else text

    def teardown(self) -> None:
        """Lets go of the game."""
        self._arena = None

    @rubric
    def win(self) -> float:
        """1 where the game was won."""
        return self._won

    def _end(self) -> str:
        """Ends the episode with the game, and returns how that ended."""
        rewards, about = self._arena.close()
        reward = min(1.0, max(0.0, float(rewards[0]))) if rewards else 0.0
        self._won = reward if self.partial else float(reward == 1.0)
        self.finish(won=reward == 1.0)
        return str(about[0].get("reason") or "The game is over.")

    def _news(self) -> str:
        """Returns what TextArena said since it was asked last, without the player's own words."""
        _, said = self._arena.get_observation()
        own = self._textarena.ObservationType.PLAYER_ACTION
        return "\n".join(text.strip() for _, text, kind in said if kind != own)
