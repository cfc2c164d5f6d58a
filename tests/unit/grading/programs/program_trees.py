"""Random formulas, their texts, rearrangements and exact values, for the tests of programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from hypothesis import strategies as st

SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
LITERALS = ["3", "5.5", "1,234", "7"]


@dataclass(frozen=True)
class Node:
    operation: str
    left: Tree
    right: Tree


Tree = Node | str

ROOTS = st.builds(
    Node,
    st.sampled_from(sorted(SIGNS)),
    *[
        st.recursive(
            st.sampled_from(LITERALS),
            lambda inner: st.builds(Node, st.sampled_from(sorted(SIGNS)), inner, inner),
            max_leaves=6,
        )
    ]
    * 2,
)


def nested(tree: Tree) -> str:
    return tree if isinstance(tree, str) else f"{tree.operation}({nested(tree.left)}, {nested(tree.right)})"


def infix(tree: Tree) -> str:
    """With brackets only where the usual precedence needs them."""
    if isinstance(tree, str):
        return tree
    left, right = infix(tree.left), infix(tree.right)
    is_strong = tree.operation in ("multiply", "divide")
    if is_strong and _is_sum(tree.left):
        left = f"({left})"
    if isinstance(tree.right, Node) and (is_strong or _is_sum(tree.right)):
        right = f"( {right} )"
    return f"{left} {SIGNS[tree.operation]} {right}"


def _is_sum(tree: Tree) -> bool:
    return isinstance(tree, Node) and tree.operation in ("add", "subtract")


def flat(root: Node) -> str:
    steps: list[str] = []

    def write(tree: Tree) -> str:
        if isinstance(tree, str):
            return tree
        left, right = write(tree.left), write(tree.right)
        steps.append(f"{tree.operation}({left}, {right})")
        return f"#{len(steps) - 1}"

    write(root)
    return ", ".join(steps)


def value(tree: Tree, numbers: Mapping[str, Fraction]) -> Fraction:
    """Exactly; raises ZeroDivisionError."""
    if isinstance(tree, str):
        return numbers[tree]
    left, right = value(tree.left, numbers), value(tree.right, numbers)
    match tree.operation:
        case "add":
            return left + right
        case "subtract":
            return left - right
        case "multiply":
            return left * right
    return left / right


def literals(tree: Tree) -> set[str]:
    return {tree} if isinstance(tree, str) else literals(tree.left) | literals(tree.right)


def rearranged(tree: Tree) -> Tree:
    """The same formula, written differently wherever a law of arithmetic allows it."""
    if isinstance(tree, str):
        return tree
    left, right = rearranged(tree.left), rearranged(tree.right)
    if tree.operation in ("add", "multiply"):
        return Node(tree.operation, right, left)
    if isinstance(left, Node) and tree.operation == "divide" and left.operation in ("add", "subtract"):
        return Node(left.operation, Node("divide", left.left, right), Node("divide", left.right, right))
    if isinstance(right, Node) and tree.operation == "subtract" and right.operation == "subtract":
        return Node("add", right.right, Node("subtract", left, right.left))
    return Node(tree.operation, left, right)
