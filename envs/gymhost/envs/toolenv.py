"""Environments that a language model acts in by messages and tool calls."""

import asyncio
import inspect
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar, cast

import gymnasium
from gymnasium.error import ResetNeeded

from gymhost.envs.local import LocalLoop, drive
from gymhost.envs.mcp_servers import McpConnection, McpServer, McpTool, tools_of
from gymhost.envs.messages import (
    CallRequest,
    as_messages,
    read_action,
    system,
    text_of,
    tool_result,
)
from gymhost.envs.rubrics import Rubric, Scores, marked_rubric, score
from gymhost.envs.tasks import Place, Task, Tasks, choose
from gymhost.envs.tools import Tool, ToolError, ToolSpec, marked_name
from gymhost.envs.turns import Call, Turn
from gymhost.wire.chat_spaces import ChatMessage, Message, Messages

T = TypeVar("T")

Observation = list[ChatMessage]
Action = ChatMessage | str
Step = tuple[Observation, float, bool, bool, dict[str, Any]]


class ToolEnv(gymnasium.Env[Observation, Action]):
    """The base of environments for language models.

    An action is an assistant message with text, reasoning and tool calls (or a plain text), an observation is the list
    of the messages that are new: the prompt after `reset`, tool results and user messages after `step`. Authors
    write methods marked with `@tool` and `@rubric` and override the hooks `setup`, `prompt`, `on_text`, `after_turn`
    and `teardown`. Tools, rubrics and hooks may all be `def` or `async def`. `reset`, `step` and `close` are plain
    methods that work anywhere; `areset`, `astep` and `aclose` are the same as coroutines.

        class Adder(ToolEnv):
            tasks = {"train": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]}

            def setup(self, task):
                self.task, self.answer = task, None

            def prompt(self, task):
                return f"What is {task['a']} + {task['b']}?"

            @tool
            def answer(self, number: int) -> str:
                '''Gives the answer.'''
                self.answer = number
                self.finish()
                return "Thank you."

            @rubric
            def right(self) -> float:
                return self.answer == self.task["a"] + self.task["b"]

    A session can be forked in mid-episode (`Session.fork`): the environment is copied by `copy.deepcopy`, its sandboxes
    are forked, and shells and Pythons in them begin anew. Where that is not the way to copy something that it holds, a
    class says so by `__deepcopy__`; one that raises a TypeError can't be forked.

    Attributes:
        system: The system prompt; None for none.
        tasks: The tasks by split: a dict, or a class method (or method) that returns one. Without tasks `setup` and
            `prompt` are given an empty one.
        public_fields: The fields of tasks that clients may see when they list them; no answers.
        default_task: The index of the task that resets play unless their options say otherwise; None draws one.
        default_split: The split that is meant unless options say otherwise; None means the first.
        max_turns: How many turns an episode may have before it is truncated; None for no limit.
        max_calls: How many tool calls.
        max_characters: How many characters of text, both sides together.
        without_call: What a turn without a tool call leads to: `ask` answers that a tool is to be called, `end` ends
            the episode. An overridden `on_text` decides for itself.
        ask_for_call: What `ask` answers; `{tools}` stands for the tools' names.
        mcp: Servers of the Model Context Protocol; their tools are offered beside the environment's own. Each episode
            has connections of its own.
        expert: A scripted policy that plays well, `module:function`, for `gymhost check`: it is given all messages of
            the conversation and returns an action.
        cheats: Scripted policies that try to be paid for nothing, written like `expert`: `gymhost check` sees that none
            of them is.
        reset_seed: The seed that the episode's reset was given; None for none.
        turn: The turn that is being played or was played last.
        turns: How many turns the episode had.
        calls: How many tool calls.
    """

    observation_space = Messages()
    action_space = Message(roles=("assistant",))

    system: str | None = None
    tasks: Any = None
    public_fields: Sequence[str] = ()
    default_task: int | None = None
    default_split: str | None = None
    max_turns: int | None = None
    max_calls: int | None = None
    max_characters: int | None = None
    without_call: Literal["ask", "end"] = "ask"
    ask_for_call: str = "Call a tool: {tools}."
    mcp: Sequence[McpServer] = ()
    expert: ClassVar[str | None] = None
    cheats: ClassVar[Sequence[str]] = ()

    reset_seed: int | None = None
    turn: Turn | None = None
    turns: int = 0
    calls: int = 0

    _tools: ClassVar[dict[str, Tool]] = {}
    _rubrics: ClassVar[list[Rubric]] = []
    _waits: ClassVar[bool] = False
    _splits: Mapping[str, Tasks] | None = None
    _connections: Mapping[McpServer, McpConnection] = MappingProxyType({})
    _loop: LocalLoop | None = None
    _state: Literal["new", "running", "ended", "broken"] = "new"
    _held = False
    _finished = False
    _characters = 0
    _place: Place | None = None
    _apart = False
    _unscored: tuple[list[Rubric], bool, bool] | None = None
    _extra: dict[str, Any] | None = None

    def __init__(self, *, task: int | None = None, split: str | None = None) -> None:
        """Makes the environment.

        Args:
            task: Sets `default_task`.
            split: Sets `default_split`.
        """
        if task is not None:
            self.default_task = task
        if split is not None:
            self.default_split = split
        self._all_tools()  # so that a server of tools that is not there is missed now

    # ------------------------------------------------------------------------------------------------------------------
    # What authors override

    def setup(self, task: Task) -> Any:
        """Makes the state of a new episode. May be `async def`."""

    def prompt(self, task: Task) -> Any:
        """Returns how the episode opens: the user's text, or a list of messages. May be `async def`."""
        raise NotImplementedError(f"{type(self).__name__} must define `prompt(task)`: the text that opens an episode")

    def on_text(self, text: str) -> Any:
        """Answers a turn without a tool call: a user's text, a list of messages, or None. May be `async def`."""
        if self.without_call == "end":
            self.finish()
            return None
        return self.ask_for_call.format(tools=", ".join(self._all_tools()))

    def after_turn(self, turn: Turn) -> Any:
        """Looks back at a turn; returns more to say, as `on_text` does, or None. May be `async def`."""

    def teardown(self) -> Any:
        """Frees what `setup` made, also where it failed half-way: called before the next `setup` and at `close`.

        May be `async def`.
        """

    # ------------------------------------------------------------------------------------------------------------------
    # What authors call, and what may be asked

    def finish(self, **info: Any) -> None:
        """Ends the episode with this turn.

        Args:
            **info: Goes into the last step's info.
        """
        self._finished = True
        self._extra = {**(self._extra or {}), **info}

    @property
    def tools(self) -> list[ToolSpec]:
        """The tools that the model may call."""
        return [tool.spec for tool in self._all_tools().values()]

    @property
    def rubrics(self) -> list[Rubric]:
        """The parts of the reward."""
        return list(self._rubrics)

    @property
    def is_async(self) -> bool:
        """Whether some tool, rubric or hook must be awaited, so that `astep` and its like are not plain code."""
        return self._waits or bool(self.mcp)

    @property
    def splits(self) -> Mapping[str, Tasks]:
        """The tasks by split; the first split is the default. Empty where the environment has no tasks."""
        # What an instance was given counts, also where the class's own are known already.
        if self._splits is None or ("tasks" in self.__dict__ and "_splits" not in self.__dict__):
            tasks: Any = self.tasks() if callable(self.tasks) else self.tasks
            made = cast(Mapping[str, Iterable[Task]], tasks or {})
            splits = {name: of if isinstance(of, Tasks) else Tasks(of) for name, of in made.items()}
            # Tasks of the class are kept once; those that a plain method makes belong to the instance.
            plain_method = inspect.isfunction(inspect.getattr_static(type(self), "tasks"))
            if plain_method or "tasks" in self.__dict__:
                self._splits = splits
            else:
                type(self)._splits = splits
            return splits
        return self._splits

    # ------------------------------------------------------------------------------------------------------------------
    # Gymnasium

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode.

        Args:
            seed: Seeds the random generator.
            options: `task`, the index of the task to play, and `split`, which it counts in. With `evaluate_apart` the
                last step is not scored: its info has `evaluation_due`, and `evaluate` pays the reward.

        Returns:
            The messages that open the conversation, and info with `task` and `split`.

        Raises:
            ValueError: There is no such task or split.
        """
        return self._run(self.areset(seed=seed, options=options))

    def step(self, action: Action) -> Step:
        """Plays a turn.

        Args:
            action: An assistant message, or its text.

        Returns:
            The messages that are new, the reward, whether the episode ended, whether a budget cut it off, and info:
            `rewards` by rubric (with `rewards_errors` and `reward_invalid` where one has none), `limit` with the name
            of the budget, and `task` and `split` at the end.

        Raises:
            ResetNeeded: There is no episode: it has not begun, has ended, or was broken by a fault.
            InvalidAction: The action is no assistant message.
        """
        return self._run(self.astep(action))

    def evaluate(self, limit: str | None = None) -> Step:
        """Scores the episode: one that has ended unscored (see `reset`), or one that whoever plays it ends here.

        Args:
            limit: The name of the limit that ended the episode, where the environment did not end it itself.

        Returns:
            What a last step returns, without messages. It pays what has not been paid yet.

        Raises:
            ResetNeeded: There is no episode, or it is scored already.
        """
        return self._run(self.aevaluate(limit))

    def close(self) -> None:
        """Frees what the environment holds. May be called twice."""
        self._run(self.aclose())
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode, as `reset` does."""
        super().reset(seed=seed)
        self.reset_seed = seed
        options = options or {}
        split, index = options.get("split"), options.get("task")
        self._place, task = choose(
            self.splits,
            self.default_split if split is None else split,
            self.default_task if index is None else index,
            lambda: self.np_random,
        )
        await self.aclose()
        self._state, self._finished, self._extra = "broken", False, None
        self._apart, self._unscored = bool(options.get("evaluate_apart")), None
        self.turn, self.turns, self.calls = None, 0, 0
        self._held = True
        if self.mcp:
            self._connections = {server: McpConnection(server) for server in self.mcp}
            await _together(connection.open() for connection in self._connections.values())
        await _result(self.setup(task))
        opening = as_messages(await _result(self.prompt(task)))
        if self.system is not None:
            opening.insert(0, system(self.system))
        self._characters = sum(len(text_of(message)) for message in opening)
        self._state = "running"
        return opening, self._place_info()

    async def astep(self, action: Action) -> Step:
        """Plays a turn, as `step` does."""
        if self._state != "running":
            raise ResetNeeded(_RESET_NEEDED[self._state])
        message, requests = read_action(action)
        # Until the turn is through, its state is half made: a fault or a cancellation leaves the episode broken.
        self._state = "broken"
        self.turns += 1
        self.turn = turn = Turn(message, text_of(message))
        observation, info = await self._respond(turn, requests)
        self._characters += len(turn.text) + sum(len(text_of(said)) for said in observation)
        terminated = self._finished
        limit = None if terminated else self._spent_budget()
        ended = terminated or limit is not None
        if limit is not None:
            info["limit"] = limit
        if ended:
            await self._leave()
            info |= self._place_info()
            info |= self._extra or {}
        due = [item for item in self._rubrics if ended or item.per_turn]
        if ended and self._apart:
            # All that is due in this step, since gates multiply what is scored with them.
            self._unscored = due, terminated, limit is not None
            info["evaluation_due"] = True
            due = []
        reward = (await score(due, self)).into(info) if due else Scores().reward
        self._state = "ended" if ended else "running"
        return observation, reward, terminated, limit is not None, info

    async def aevaluate(self, limit: str | None = None) -> Step:
        """Scores the episode, as `evaluate` does."""
        if self._unscored is not None and self._state == "ended":
            due, terminated, truncated = self._unscored
            info: dict[str, Any] = {}
        elif self._state == "running":
            due, terminated, truncated = [item for item in self._rubrics if not item.per_turn], False, True
            info = {"limit": limit} if limit else {}
        else:
            raise ResetNeeded(_RESET_NEEDED[self._state])
        self._state, self._unscored = "broken", None
        await self._leave()
        info |= self._place_info()
        reward = (await score(due, self)).into(info)
        self._state = "ended"
        return [], reward, terminated, truncated, info

    async def aclose(self) -> None:
        """Frees what the environment holds, as `close` does."""
        self._state = "new"
        if self._held:
            self._held = False
            try:
                await _result(self.teardown())
            finally:
                connections, self._connections = self._connections, {}
                for connection in connections.values():
                    await connection.close()

    # ------------------------------------------------------------------------------------------------------------------
    # How it works

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Collects the tools and rubrics of a class.

        Raises:
            TypeError: A tool or rubric has a name that the environment itself needs, or can't be a tool.
        """
        super().__init_subclass__(**kwargs)
        cls._tools, cls._rubrics, cls._splits = {}, [], None
        for name in _own_order(cls):
            attribute = inspect.getattr_static(cls, name)
            tool_name, rubric = marked_name(attribute), marked_rubric(attribute)
            if tool_name is None and rubric is None:
                continue
            taken = {name, tool_name} & _RESERVED
            if taken:
                raise TypeError(
                    f"{cls.__name__}.{name}: {taken.pop()!r} belongs to every environment and can't be a tool"
                )
            if tool_name in cls._tools:
                raise TypeError(f"{cls.__name__} has two tools named {tool_name!r}")
            if tool_name is not None:
                cls._tools[tool_name] = Tool(attribute)
            if rubric is not None:
                cls._rubrics.append(rubric)
        cls._waits = (
            any(inspect.iscoroutinefunction(getattr(cls, hook)) for hook in _HOOKS)
            or any(
                getattr(cls, name) is not getattr(ToolEnv, name) for name in ("areset", "astep", "aevaluate", "aclose")
            )
            or any(tool.is_async for tool in cls._tools.values())
            or any(rubric.is_async for rubric in cls._rubrics)
        )

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs one of the coroutines for a caller that is not asynchronous."""
        if not self.is_async:
            return drive(coroutine)
        if self._loop is None:
            self._loop = LocalLoop(self)
        return self._loop.run(coroutine)

    def _place_info(self) -> dict[str, Any]:
        return {} if self._place is None else {"task": self._place.task, "split": self._place.split}

    def _side_by_side(self, requests: list[CallRequest]) -> list[list[CallRequest]]:
        """Puts neighbours among a turn's calls together whose tools may all run at the same time."""
        groups: list[list[CallRequest]] = []
        before = False
        for request in requests:
            parallel = request.name in self._tools and self._tools[request.name].parallel
            if parallel and before:
                groups[-1].append(request)
            else:
                groups.append([request])
            before = parallel
        return groups

    async def _call(self, request: CallRequest) -> Call:
        if self._finished:
            return Call(request.id, request.name, None, "Not run: the episode ended with the call before.", False)
        if self.max_calls is not None and self.calls >= self.max_calls:
            return Call(request.id, request.name, None, f"Not run: {self.max_calls} calls were made already.", False)
        self.calls += 1
        arguments: dict[str, Any] | None = None
        try:
            tool, arguments = self._find(request)
            if isinstance(tool, McpTool):
                result = await self._connections[tool.server].call(tool.name, arguments)
            else:
                result = await tool.call(self, arguments)
        except ToolError as error:
            result = f"Error: {error}"
        return Call(request.id, request.name, arguments, result, arguments is not None)

    def _all_tools(self) -> Mapping[str, Tool | McpTool]:
        """The environment's own tools and those of its servers.

        Raises:
            TypeError: Two tools have the same name.
        """
        if not self.mcp:
            return self._tools
        found: dict[str, Tool | McpTool] = dict(self._tools)
        for server in self.mcp:
            for tool in tools_of(server):
                if found.setdefault(tool.spec.name, tool) is not tool:
                    raise TypeError(
                        f"two tools are named {tool.spec.name!r}, one of them of {server}: give that McpServer a prefix"
                    )
        return found

    def _find(self, request: CallRequest) -> tuple[Tool | McpTool, dict[str, Any]]:
        if request.problem is not None or request.arguments is None:
            raise ToolError(f"malformed tool call: {request.problem}")
        tools = self._all_tools()
        tool = tools.get(request.name)
        if tool is None:
            known = f"the tools are {', '.join(tools)}" if tools else "there are no tools"
            raise ToolError(f"there is no tool {request.name!r}; {known}")
        return tool, tool.check(request.arguments)

    async def _respond(self, turn: Turn, requests: list[CallRequest]) -> tuple[Observation, dict[str, Any]]:
        """Lets the model's message have its effects; returns the messages that are new, and what the info tells."""
        observation: Observation = []
        for beside in self._side_by_side(requests):
            calls = [await self._call(beside[0])] if len(beside) == 1 else await _together(map(self._call, beside))
            turn.calls += calls
            observation += [tool_result(call.id, call.name, call.result) for call in calls]
        if not requests:
            observation += as_messages(await _result(self.on_text(turn.text)))
        observation += as_messages(await _result(self.after_turn(turn)))
        return observation, {}

    async def _leave(self) -> None:
        """Ends what plays beside the model, before the episode is scored. May be called twice."""

    def _spent_budget(self) -> str | None:
        """Returns the name of the budget that is used up, or None."""
        if self.max_turns is not None and self.turns >= self.max_turns:
            return "max_turns"
        if self.max_calls is not None and self.calls >= self.max_calls:
            return "max_calls"
        if self.max_characters is not None and self._characters >= self.max_characters:
            return "max_characters"
        return None


_HOOKS = ("setup", "prompt", "on_text", "after_turn", "teardown")
_RESERVED = frozenset(name for name in (*dir(ToolEnv), "seed") if not name.startswith("__"))
_RESET_NEEDED = {
    "new": "call reset before step",
    "ended": "the episode has ended: call reset before the next step",
    "broken": "a fault or a cancellation broke the episode off: call reset before the next step",
}


def _own_order(cls: type) -> list[str]:
    """Returns the names of a class's attributes, those of base classes first, each class's in the order of its text."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        names |= dict.fromkeys(vars(base))
    return list(names)


async def _together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Awaits coroutines side by side; where one raises, the others are cancelled before that is raised on."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _result(value: Any) -> Any:
    """Returns what a function returned, awaited where it must be."""
    return await value if inspect.isawaitable(value) else value
