"""An agent that was written for OpenAI's API plays an environment, as it is, in its sandbox, which has no network.

`python harness.py` plays an episode here with a scripted model; `gymhost serve harness` hosts the environment.
"""

from gymhost.envs import Task, ToolEnv, make, register, rubric
from gymhost.envs.harness import Harness, HarnessEnv
from gymhost.envs.sandbox import Limits, Sandbox, SandboxSpec, create

# Somebody's agent. It knows nothing of gymhost, and would work as well with any other model.
AGENT = """
import json, os, subprocess, sys, urllib.request

def ask(messages):
    tool = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
    body = {"model": sys.argv[1], "messages": messages, "tools": [{"type": "function", "function": tool}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)["choices"][0]["message"]

messages = [{"role": "system", "content": "Use bash."}, {"role": "user", "content": sys.argv[2]}]
while calls := (said := ask(messages)).get("tool_calls"):
    messages.append(said)
    for call in calls:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
"""


class Sum(ToolEnv):
    """A table lies in the sandbox, and its total is to be written to a file. There are no tools."""

    tasks = {"train": [{"prices": [4, 8]}, {"prices": [15, 16, 23]}], "test": [{"prices": [2, 7, 1, 8]}]}
    max_turns = 10
    sandbox_spec = SandboxSpec(limits=Limits(memory=256 * 2**20, processes=64, cpus=1.0))
    sandbox: Sandbox | None = None

    async def setup(self, task: Task) -> None:
        """Begins an episode, in a sandbox of its own."""
        self.total = sum(task["prices"])
        self.sandbox = await create(self.sandbox_spec)
        await self.sandbox.write("prices.txt", "".join(f"{price}\n" for price in task["prices"]))

    async def teardown(self) -> None:
        """Removes the sandbox."""
        if self.sandbox is not None:
            await self.sandbox.destroy()

    def prompt(self, task: Task) -> str:
        """Returns what the agent is asked."""
        return "Write the sum of the prices in prices.txt to total.txt."

    @rubric
    async def right(self) -> float:
        """1 for the right sum, read when nothing of the agent's runs any more."""
        assert self.sandbox is not None
        await self.sandbox.halt()
        written = await self.sandbox.run(["cat", "total.txt"], timeout=10, output_limit=64)
        return float(written.ok and written.stdout.strip() == str(self.total))


class SumByAgent(HarnessEnv, Sum):
    """The same, played by the agent: what it asks is observed, and an action is what it is answered."""

    harness = Harness(command=("python3", "{folder}/agent.py", "{model}", "{prompt}"), files={"agent.py": AGENT})


register("acme/SumByAgent-v0", SumByAgent, mode="async", description="Write a sum to a file, by an agent's harness.")


def bash(command: str) -> dict[str, object]:
    """Returns an assistant's message that calls the agent's tool."""
    made = {"id": "call_0", "type": "function", "function": {"name": "bash", "arguments": {"command": command}}}
    return {"role": "assistant", "content": "", "tool_calls": [made]}


if __name__ == "__main__":
    env = make("acme/SumByAgent-v0")
    messages, info = env.reset(options={"split": "train", "task": 1})
    print(f"The agent offers {[tool['name'] for tool in info['tools']]}.")
    for action in (
        bash("cat prices.txt"),
        bash("paste -sd+ prices.txt | python3 -c 'print(eval(input()))' >total.txt"),
        {"role": "assistant", "content": "I am done."},
    ):
        for message in messages:
            print(f"{message['role']}: {message['content']}")
        messages, reward, terminated, truncated, info = env.step(action)
    print(f"Reward: {reward}. Ended: {terminated}. Exit status of the agent: {info['harness']['exit_status']}")
    env.close()
