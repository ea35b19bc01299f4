"""Environments for tests of gateways: importing this module registers them."""

from gymhost.envs import Task, ToolEnv, register, rubric


class Unpaid(ToolEnv):
    """Ends with the first turn, and can't tell what that is worth."""

    without_call = "end"

    def prompt(self, task: Task) -> str:
        return "Go."

    @rubric
    def broken(self) -> float:
        raise ValueError("nobody knows")


register("test/Unpaid-v0", Unpaid)
