"""Where an op belongs: the module and line that run it, or those of the forward op it differentiates."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ampdoctor.facts.words import Phase
from ampdoctor.probe.watch.location import Line, ModuleStack, is_recomputing, user_line


@dataclass
class Place:
    """Where an op belongs."""

    phase: Phase
    module: str
    line: Line | None
    forward_op: str = ""
    forward_order: int = -1
    """For a backward op: the position of its forward op among the pass's ops; -1 where that is not known."""
    parameter: str = ""
    recomputed: bool = False
    backward_line: Line | None = None
    """The user's line inside a backward they wrote themselves; None for torch's own formulas."""


class Locator:
    """Finds the place of the op that is running: its module and line, or those of its forward op."""

    def __init__(
        self, modules: ModuleStack, parameters: dict[int, tuple[str, str]], phase: Phase = "forward"
    ) -> None:
        self.modules = modules
        self._phase: Phase = phase
        """Of ops that no autograd node runs."""
        self._parameters = parameters
        """id of a parameter -> its name and its module's path"""
        self._forward: dict[int, tuple[str, Line | None, str, int]] = {}
        """sequence number of an autograd node -> the module, line, op and order of its forward"""
        self._ran_in: dict[Line, set[str]] = {}
        """line of the forward -> the modules in which it ran"""

    @property
    def phase(self) -> Phase:
        """Of the op that runs now, or would."""
        return self._phase if torch._C._current_autograd_node() is None else "backward"

    def begin_backward(self) -> None:
        """From now on, what runs outside any autograd node (scaling the loss) is of backward too."""
        self._phase = "backward"

    def locate(self, op_name: str, order: int) -> Place:
        """The place of the op about to run. Remembers it, so that its backward finds it."""
        node = torch._C._current_autograd_node()
        place = self._place(node)
        if node is not None or self._phase == "forward":
            # The op's autograd node is made before the op runs, and took the number before this one. (In
            # backward as well: of a recomputed forward, or of a backward that is differentiated again.)
            number = torch._C._autograd._get_sequence_nr() - 1
            self._forward.setdefault(number, (place.module, place.line, op_name, order))
        return place

    def _place(self, node: torch.autograd.graph.Node | None) -> Place:
        running = self.modules.innermost
        if node is None or (running is not None and running.node is node):
            # A module's forward makes the op itself; during backward, activation checkpointing has it do so.
            phase = self.phase
            place = Place(phase, self.modules.current, user_line(in_backward=phase == "backward"))
            place.recomputed = node is not None
            if phase == "forward" and place.line is not None:
                self._ran_in.setdefault(place.line, set()).add(place.module)
            return place
        variable = getattr(node, "variable", None)
        if variable is not None:
            name, module = self._parameters.get(id(variable), ("", ""))
            return Place("backward", module, None, parameter=name)
        module, line, forward_op, at = self._forward.get(node._sequence_nr(), ("", None, "", -1))
        own = user_line(in_backward=True)
        if own is not None and is_recomputing():
            return Place("backward", self._recomputed_in(own, module), own, recomputed=True)
        return Place("backward", module, line, forward_op, at, backward_line=own)

    def arrives_at(self) -> str:
        """The name of the parameter whose gradient the running node makes; '' where it goes on."""
        node = torch._C._current_autograd_node()
        for following, _ in () if node is None else node.next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None:
                return self._parameters.get(id(variable), ("", ""))[0]
        return ""

    def _recomputed_in(self, line: Line, module: str) -> str:
        """The module whose checkpointed function has this line, seen from a module inside that function."""
        above = [m for m in self._ran_in.get(line, ()) if m in ("", module) or module.startswith(f"{m}.")]
        return max(above, key=len, default=module)
