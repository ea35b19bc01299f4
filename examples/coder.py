"""The model writes code, in a sandbox. `python coder.py` plays an episode here, `gymhost serve coder` hosts it."""

from gymhost.envs import Task, ToolEnv, make, register, rubric, tool
from gymhost.envs.sandbox import Limits, Sandbox, SandboxSpec, create

SPEC = SandboxSpec(limits=Limits(memory=256 * 2**20, processes=64, cpus=1.0, disk=64 * 2**20))


class Coder(ToolEnv):
    """A table lies in the sandbox, and its total is to be written to a file, with a shell and with Python."""

    system = "You work in a Linux sandbox without a network. Say that you are done when you are."
    tasks = {
        "train": [{"prices": [4, 8]}, {"prices": [15, 16, 23]}, {"prices": [42]}],
        "test": [{"prices": [2, 7, 1, 8]}],
    }
    max_turns = 10
    without_call = "end"
    sandbox: Sandbox | None = None

    async def setup(self, task: Task) -> None:
        """Begins an episode, in a sandbox of its own."""
        self.total = sum(task["prices"])
        self.sandbox = await create(SPEC)
        self.shell = await self.sandbox.shell()
        self.interpreter = await self.sandbox.python()
        rows = [f"thing {number},{price}" for number, price in enumerate(task["prices"])]
        await self.sandbox.write("prices.csv", "\n".join(["name,price", *rows, ""]))

    async def teardown(self) -> None:
        """Ends all that runs in the sandbox, and removes it."""
        if self.sandbox is not None:
            await self.sandbox.destroy()

    def prompt(self, task: Task) -> str:
        """Returns what the model is asked."""
        return "Write the sum of the prices in prices.csv to total.txt."

    @tool
    async def bash(self, command: str) -> str:
        """Runs a command in a shell, whose folder and variables last.

        Args:
            command: The command.
        """
        result = await self.shell.run(command, timeout=30, output_limit=8192)
        ended = f"exit status {result.exit_status}" if result.limit is None else f"ended by its limit of {result.limit}"
        return f"{result.stdout}{result.stderr}[{ended}]"

    @tool
    async def python(self, code: str) -> str:
        """Runs Python, whose variables last; the value of the last expression is shown.

        Args:
            code: The code.
        """
        result = await self.interpreter.run(code, timeout=30, output_limit=8192)
        ended = result.limit and f"[ended by its limit of {result.limit}]"
        return "".join(part for part in (result.stdout, result.stderr, result.error, result.value, ended) if part)

    @rubric
    async def right(self) -> float:
        """1 for the right sum, read by a process that the model has no hand in."""
        assert self.sandbox is not None
        await self.sandbox.halt()  # what the model left running has no hand in it either
        written = await self.sandbox.run(["cat", "total.txt"], timeout=10, output_limit=64)
        return float(written.ok and written.stdout.strip() == str(self.total))


register("acme/Coder-v0", Coder, mode="async", description="Write the sum of a table to a file, in a sandbox.")


def call(name: str, **arguments: str) -> dict[str, object]:
    """Returns an assistant's message that calls a tool."""
    made = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [made]}


if __name__ == "__main__":
    env = make("acme/Coder-v0")
    messages, info = env.reset(options={"split": "train", "task": 1})
    for action in (
        call("bash", command="cat prices.csv"),
        call("python", code="prices = [15, 16, 23]\nsum(prices)"),
        call("bash", command="echo 54 > total.txt"),
        {"role": "assistant", "content": "I am done."},
    ):
        for message in messages:
            print(f"{message['role']}: {message['content']}")
        messages, reward, terminated, truncated, info = env.step(action)
    print(f"Reward: {reward}. Ended: {terminated}")
    env.close()
