"""What of a test the solution's process evaluates, and what is judged where nothing of the solution is."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.environments.code.assert_parts import Expected, TestProblem, defined_names, split_test


@pytest.mark.parametrize(
    ("source", "asked", "verdict", "expected", "modules"),
    [
        ("assert f(1) == 2", ("f(1)",), "_asked_0 == 2", Expected(2), ()),
        (
            "assert f([1], x={'a': (2,)})[0] == -1.5",
            ("f([1], x={'a': (2,)})[0]",),
            "_asked_0 == -1.5",
            Expected(-1.5),
            (),
        ),
        ("assert f(g(1)) == {1, 2}", ("f(g(1))",), "_asked_0 == {1, 2}", Expected({1, 2}), ()),
        ("assert f(root) == True, 'no'", ("f(root)",), "_asked_0 == True", Expected(True), ()),
        ("assert sorted(f(1)) == [1]", ("sorted(f(1))",), "_asked_0 == [1]", Expected([1]), ()),
        ("assert set(f(1)) == set((1,))", ("set(f(1))",), "_asked_0 == set((1,))", None, ()),
        ("assert tuple(sorted(f(1)[0])) == (1,)", ("tuple(sorted(f(1)[0]))",), "_asked_0 == (1,)", Expected((1,)), ()),
        ("assert sorted(f(1), key=abs) == [1]", ("f(1)",), "sorted(_asked_0, key=abs) == [1]", None, ()),
        ("assert sorted([f(1)]) == [1]", ("f(1)",), "sorted([_asked_0]) == [1]", None, ()),
        ("assert len(f(1)) == 1", ("f(1)",), "len(_asked_0) == 1", None, ()),
        ("assert f(1) == g(2)", ("f(1)", "g(2)"), "_asked_0 == _asked_1", None, ()),
        ("assert f(1)", ("not not f(1)",), "_asked_0", Expected(True), ()),
        ("assert not f(1)", ("not not f(1)",), "not _asked_0", Expected(False), ()),
        (
            "assert f(1) and not (g(2) or f(3) == 4)",
            ("not not f(1)", "not not g(2)", "f(3)"),
            "_asked_0 and (not (_asked_1 or _asked_2 == 4))",
            None,
            (),
        ),
        ("assert len(f(1))", ("f(1)",), "len(_asked_0)", None, ()),
        ("assert Tree(3).left.size() == 1", ("Tree(3).left.size()",), "_asked_0 == 1", Expected(1), ()),
        ("assert math.isclose(f(2), 0.5)", ("f(2)",), "math.isclose(_asked_0, 0.5)", None, ("math",)),
        ("assert f(1) == sys.getsizeof(())", ("f(1)",), "_asked_0 == sys.getsizeof(())", None, ("sys",)),
        ("assert 2 == f(1)", ("f(1)",), "2 == _asked_0", None, ()),
        ("assert f(1) == [x + 1 for x in range(2)]", ("f(1)",), "_asked_0 == [x + 1 for x in range(2)]", None, ()),
        ("assert f(1) is None", ("f(1) is None",), "_asked_0", Expected(True), ()),
        ("assert f(1) is not None", ("f(1) is not None",), "_asked_0", Expected(True), ()),
        ("assert f(1) is True", ("f(1)",), "_asked_0 is True", None, ()),
    ],
)
def test_the_solution_is_asked_for_its_own_calls_only(
    source: str, asked: tuple[str, ...], verdict: str, expected: Expected | None, modules: tuple[str, ...]
) -> None:
    test = split_test(source, {"f", "g", "root"})
    assert (test.asked, test.verdict, test.expected, test.modules) == (asked, verdict, expected, modules)


def test_a_solution_may_be_called_like_a_builtin() -> None:
    assert split_test("assert sum([1]) == 1", {"sum"}).asked == ("sum([1])",)
    assert split_test("assert max(f(1)) == 1", set()).asked == ("f(1)",)
    assert split_test("assert len(set(1)) == 1", {"set"}).asked == ("set(1)",)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("assert 1 == 1", "asks the solution for nothing"),
        ("f(1) == 2", "not one assert statement"),
        ("x = f(1)\nassert x == 2", "not one assert statement"),
        ("assert f(1", "not valid Python"),
        ("assert all(f(x) == x for x in (1, 2))", "inside a loop"),
        ("assert (lambda y: f(y))(1) == 1", "inside a loop, a lambda"),
        ("", "not one assert statement"),
        ("assert f(" + "(" * 500 + ")" * 500 + ")", "not valid Python"),
    ],
)
def test_what_cannot_be_taken_apart_is_told(source: str, reason: str) -> None:
    with pytest.raises(TestProblem, match=reason):
        split_test(source, {"f"})


_expressions = st.recursive(
    st.sampled_from(["f(1)", "g('a')[0]", "3", "[1, 2]", "len(f(2))", "set(f(3))", "math.pi", "abs(-1)", "root.left"]),
    lambda inner: st.builds("({} + {})".format, inner, inner) | st.builds("max({}, {})".format, inner, inner),
    max_leaves=6,
)


@given(left=_expressions, right=_expressions)
def test_the_parts_put_together_are_the_test(left: str, right: str) -> None:
    source = f"assert {left} == {right}"
    try:
        test = split_test(source, {"f", "g", "root"})
    except TestProblem:
        assert not any(name in source for name in ("f(", "g(", "root"))
        return
    names = {node.id for node in ast.walk(ast.parse(test.verdict)) if isinstance(node, ast.Name)}
    assert not names & {"f", "g", "root"}
    whole = test.verdict
    for number, asked in enumerate(test.asked):
        whole = whole.replace(f"_asked_{number}", asked, 1)
    assert ast.dump(ast.parse(f"assert {whole}")) == ast.dump(ast.parse(source))


def test_names_that_a_module_defines() -> None:
    source = "import math\nX = 1\ndef f(): y = 2\nclass C: z = 3\nfor i in (): a, b = i\n"
    assert defined_names(source) == {"X", "f", "C", "i", "a", "b"}
    assert defined_names("def f(") == frozenset()
