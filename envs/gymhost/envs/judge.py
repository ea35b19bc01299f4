"""A language model as judge, for rubrics whose score no code can tell."""

import asyncio
import importlib
import math
import os
import random
import re
from typing import Any

__all__ = ["Judge", "JudgeError"]

_VERDICT = re.compile(r"SCORE:\s*([-+]?(?:\d+\.?\d*|\.\d+))")
_FORM = (
    "\n\nEnd your answer with a line of its own, SCORE: and a number from {low:g} to {high:g}, and nothing after it."
)
# HTTP statuses that a later attempt may not meet.
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0


class JudgeError(Exception):
    """The judge gave no score that counts. A rubric that lets it through makes the reward invalid, not zero."""


class Judge:
    """Asks a model behind an OpenAI-compatible endpoint for a score.

        judge = Judge("http://gpu3:8000/v1", "Qwen/Qwen3-8B", prompt="{question} Is this right: {answer}?")

        @rubric
        async def helpful(self) -> float:
            return await self.judge.score(question=self.task["question"], answer=self.answer)

    Its verdict is read strictly: the last line of its answer must be `SCORE:` and a number in the range, which the
    prompt is made to ask for. Where it is not, it is asked again.

    Args:
        url: The endpoint's base, such as `http://gpu3:8000/v1`.
        model: The model's name there.
        prompt: What it is asked; `{name}` stands for what `score` is given by that name.
        system: A system prompt.
        low: The lowest score.
        high: The highest.
        api_key: The name of the environment variable that has the key, where one is needed.
        timeout: Seconds that a score may take, all attempts together.
        attempts: How often it is asked at most.
        **sampling: What else goes into the request, such as `temperature` (0 by default) or `max_tokens`.

    Raises:
        ValueError: `low` is not below `high`, or a limit is not above 0.
        ModuleNotFoundError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        prompt: str,
        system: str | None = None,
        low: float = 0.0,
        high: float = 1.0,
        api_key: str | None = None,
        timeout: float = 120.0,
        attempts: int = 4,
        **sampling: Any,
    ) -> None:
        if not low < high:
            raise ValueError(f"a judge's low ({low:g}) must be below its high ({high:g})")
        if not (timeout > 0 and attempts > 0):
            raise ValueError("a judge's timeout and attempts must be above 0")
        try:
            self._httpx: Any = importlib.import_module("httpx")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("a Judge needs httpx: pip install httpx", name=error.name) from None
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._body: dict[str, Any] = {"model": model, "temperature": 0.0, **sampling}
        self._prompt = prompt
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._form = _FORM.format(low=low, high=high)
        self._low, self._high = low, high
        self._api_key = api_key
        self._timeout = timeout
        self._attempts = attempts

    async def score(self, **fields: object) -> float:
        """Asks for a score.

        Args:
            **fields: What the prompt's `{name}`s stand for.

        Raises:
            KeyError: The prompt has a name that is not given.
            JudgeError: It gave none that counts, in all attempts or in the time it had.
        """
        asked = {"role": "user", "content": self._prompt.format_map(fields) + self._form}
        body = {**self._body, "messages": [*self._opening, asked]}
        problem = "it did not answer"
        try:
            async with asyncio.timeout(self._timeout), self._client() as client:
                for attempt in range(self._attempts):
                    if attempt:
                        # Spread out, so that the judges of a batch do not come back all at once.
                        longest = min(_FIRST_WAIT * 2 ** (attempt - 1), _LONGEST_WAIT)
                        await asyncio.sleep(random.uniform(longest / 2, longest))
                    answer, problem = await self._ask(client, body)
                    if answer is not None:
                        score, problem = self._read(answer)
                        if score is not None:
                            return score
        except TimeoutError:
            raise JudgeError(f"the judge took more than {self._timeout:g} s (timeout); last, {problem}") from None
        raise JudgeError(f"the judge gave no score in {self._attempts} attempts: {problem}")

    def _client(self) -> Any:
        key = None if self._api_key is None else os.environ.get(self._api_key)
        if self._api_key is not None and not key:
            raise JudgeError(f"the environment variable {self._api_key}, which has the judge's key, is not set")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return self._httpx.AsyncClient(timeout=self._timeout, headers=headers)

    async def _ask(self, client: Any, body: dict[str, Any]) -> tuple[str | None, str]:
        """Returns the judge's answer, or None and why there is none.

        Raises:
            JudgeError: Another attempt would be answered in the same way.
        """
        try:
            response = await client.post(self._url, json=body)
        except self._httpx.TransportError as error:
            return None, f"{type(error).__name__}: {error}"
        if response.status_code != 200:
            problem = f"HTTP {response.status_code}: {response.text[:500]}"
            if response.status_code not in _PASSING:
                raise JudgeError(f"the judge refuses: {problem}")
            return None, problem
        try:
            content = response.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            return None, f"no chat completion: {response.text[:500]}"
        return (content, "") if isinstance(content, str) else (None, "its answer has no text")

    def _read(self, answer: str) -> tuple[float | None, str]:
        """Returns the score of an answer, or None and why there is none."""
        last = answer.rstrip().rpartition("\n")[2].strip()
        found = _VERDICT.fullmatch(last)
        if found is None:
            return None, f"its last line is no verdict: {last[:200]!r}"
        score = float(found[1])
        if not (math.isfinite(score) and self._low <= score <= self._high):
            return None, f"its score {score:g} is outside of {self._low:g} to {self._high:g}"
        return score, ""
