"""An environment of one's own. `python my_environment.py` plays it here, `gymhost serve my_environment` hosts it."""

from gymhost.envs import Task, ToolEnv, make, register, rubric, tool


class Sum(ToolEnv):
    """Boxes hold numbers, a tool opens one at a time, and the sum of all is asked for."""

    tasks = {
        "train": [{"boxes": [4, 8]}, {"boxes": [15, 16, 23]}, {"boxes": [42]}],
        "test": [{"boxes": [2, 7, 1, 8]}],
    }
    max_turns = 10

    def setup(self, task: Task) -> None:
        """Begins an episode."""
        self.boxes: list[int] = task["boxes"]
        self.answered: int | None = None

    def prompt(self, task: Task) -> str:
        """Returns what the model is asked."""
        return f"There are {len(task['boxes'])} boxes, each with a number in it. What is the sum of the numbers?"

    @tool
    def open_box(self, box: int) -> str:
        """Opens a box and tells the number in it.

        Args:
            box: Which box: the first one is 1.
        """
        if not 1 <= box <= len(self.boxes):
            return f"There is no box {box}: there are {len(self.boxes)}."
        return f"Box {box} has {self.boxes[box - 1]} in it."

    @tool
    def answer(self, total: int) -> str:
        """Gives the answer, which ends the episode.

        Args:
            total: The sum of the numbers in all boxes.
        """
        self.answered = total
        self.finish()
        return "Thank you."

    @rubric
    def right(self) -> float:
        """1 for the right sum."""
        return float(self.answered == sum(self.boxes))

    @rubric(weight=0.1)
    def quick(self) -> float:
        """1 where no more turns were taken than there are boxes, and one for the answer."""
        return float(self.turns <= len(self.boxes) + 1)


register("acme/Sum-v0", Sum, mode="inline", description="Open boxes and add up what is in them.")


def call(name: str, **arguments: int) -> dict[str, object]:
    """Returns a tool call, as a model's message has it."""
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


if __name__ == "__main__":
    env = make("acme/Sum-v0")
    messages, info = env.reset(options={"split": "train", "task": 0})
    for action in (
        {"role": "assistant", "content": "", "tool_calls": [call("open_box", box=1), call("open_box", box=2)]},
        {"role": "assistant", "content": "4 and 8 make 12.", "tool_calls": [call("answer", total=12)]},
    ):
        for message in messages:
            print(f"{message['role']}: {message['content']}")
        messages, reward, terminated, truncated, info = env.step(action)
    print(f"Reward: {reward}, of {info['rewards']}. Ended: {terminated}")
