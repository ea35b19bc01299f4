"""Which layers there are, and who needs them. Standard library alone: the keeper uses it."""

import os
from collections.abc import Sequence

from gymhost.envs.sandbox.bubblewrap import children, layers
from gymhost.envs.sandbox.bubblewrap.terms import LAYERS

__all__ = ["Stacks"]


class Stacks:
    """Snapshots, each a stack of layers, the topmost first. A layer is there while a snapshot or a sandbox needs it."""

    def __init__(self) -> None:
        self._users: dict[str, int] = {}
        self._snapshots: dict[str, list[str]] = {}
        self._made = 0
        self._overlays: bool | None = None

    def of(self, snapshot: str) -> list[str]:
        """Returns the stack of a snapshot; KeyError where there is none."""
        return list(self._snapshots[snapshot])

    def new_layer(self) -> str:
        """Returns a path for a layer, which is also the name of the snapshot that it is the top of."""
        self._made += 1
        return os.path.join(LAYERS, str(self._made))

    def keep(self, layer: str, below: Sequence[str]) -> None:
        """Keeps a snapshot: a layer that was made on top of a stack."""
        self._users[layer] = 0
        self._snapshots[layer] = layers.standing(layer, below)
        self.hold(self._snapshots[layer])

    def throw_away(self, layer: str) -> None:
        """Removes what there is of a layer that is not kept."""
        if os.path.lexists(layer):
            children.run(lambda: layers.remove_tree(layer))

    def discard(self, snapshot: str) -> None:
        """Forgets a snapshot; KeyError where there is none."""
        self.release(self._snapshots.pop(snapshot))

    def hold(self, stack: Sequence[str]) -> None:
        """Has one more stand on these layers."""
        for layer in stack:
            self._users[layer] += 1

    def release(self, stack: Sequence[str]) -> None:
        """Has one less stand on these layers."""
        for layer in stack:
            self._users[layer] -= 1
            if self._users[layer] == 0:
                del self._users[layer]
                self.throw_away(layer)

    def can_overlay(self) -> bool:
        """Whether what sandboxes write to can be an overlay: older kernels have none for ordinary users."""
        if self._overlays is None:
            pid = children.run(layers.try_overlay)
            self._overlays = os.waitpid(pid, 0)[1] == 0
        return self._overlays
