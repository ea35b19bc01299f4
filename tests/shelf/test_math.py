"""Math: the calculator's bounds, the forms of answers, and what is found equal."""

import time
from fractions import Fraction
from typing import Any

import pytest

from gymhost.envs.shelf.calculator import CalculatorError, calculate
from gymhost.envs.shelf.math_answers import AnswerRefused, Form, as_latex, equal, load
from gymhost.envs.shelf.math_problems import KINDS, problem
from gymhost.envs.shelf.mathematics import Math
from gymhost.envs.shelf.scripted import call

# Seconds that nothing here may take: all is bounded, and the machine may be busy.
AT_ONCE = 20.0


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1/3 + 1/6) ** 2", Fraction(1, 4)),
        ("0.1 + 0.2", Fraction(3, 10)),
        ("2^10", 1024),
        ("2 ** -2", Fraction(1, 4)),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("7^355 % 970", pow(7, 355, 970)),
        ("sqrt(49/4)", Fraction(7, 2)),
        ("comb(10, 3) - comb(8, 1)", 112),
        ("factorial(5) + gcd(12, 18) + lcm(4, 6)", 138),
        ("floor(7/2) + ceil(7/2) + abs(-1)", 8),
        ("+5.", 5),
    ],
)
def test_arithmetic_is_exact(expression: str, value: Any) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("9^9^9^9", "too large"),
        ("10**5000", "too large"),
        ("(9**1000)**1000", "too large"),
        ("factorial(10**9)", "from 0 to 500"),
        ("comb(10**9, 5)", "from 0 to 2000"),
        ("2 ** (1/2)", "an exponent is a whole number"),
        ("sqrt(13)", "no fraction; it is about 3.6055512754"),
        ("sqrt(-1)", "negative"),
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("gcd(1/2, 3)", "whole number"),
        ("gcd(1)", "gcd does not take 1"),
        ("1e999999999", "no number"),
        ("0x10", "no number"),
        ("1j", "no number"),
        ("True", "no number"),
        ("'a' * 9", "no number"),
        ("x", "not understood"),
        ("__import__('os').system('true')", "not understood"),
        ("().__class__", "not understood"),
        ("(lambda: 1)()", "not understood"),
        ("[1][0]", "not understood"),
        ("1 if 1 else 2", "not understood"),
        ("abs(*[1])", "not understood"),
        ("abs(value=1)", "not understood"),
        ("1 << 10**9", "not understood"),
        ("", "no arithmetic expression"),
        ("1 +", "no arithmetic expression"),
        ("1; 2", "no arithmetic expression"),
        ("\x00", "no arithmetic expression"),
        ("(" * 250 + "1" + ")" * 249, "no arithmetic expression"),
        ("1" * 501, "at most 500 characters"),
    ],
)
def test_all_else_is_refused_at_once(expression: str, why: str) -> None:
    began = time.monotonic()
    with pytest.raises(CalculatorError, match=why):
        calculate(expression)
    assert time.monotonic() - began < AT_ONCE


@pytest.mark.parametrize(
    ("form", "right", "answer"),
    [
        ("number", "42", "42"),
        ("number", "42", " x = 42 "),
        ("number", "42", r"$\boxed{42}$"),
        ("number", "42", "84/2"),
        ("number", "1234567", "1,234,567"),
        ("number", r"-\frac{3}{4}", "-3/4"),
        ("number", r"-\frac{3}{4}", "-0.75"),
        ("number", r"-\frac{3}{4}", r"-\dfrac{6}{8}"),
        ("number", r"-\frac{3}{4}", "\N{MINUS SIGN}.75"),
        ("root", r"5+2\sqrt{3}", "5 + 2*sqrt(3)"),
        ("root", r"5+2\sqrt{3}", "2√3 + 5"),
        ("root", r"5+\sqrt{12}", r"$5+2\sqrt{3}$"),
        ("root", r"\sqrt{8}", "4/sqrt(2)"),
        ("root", "13", "sqrt(169)"),
        ("polynomial", "3x^2 - x + 1", "1 - x + 3*x**2"),
        ("polynomial", "3x^2 - x + 1", "f(x) = 3x^2 - x + 1"),
        ("polynomial", "x^2 - 1", "(x - 1)(x + 1)"),
    ],
)
def test_what_is_equal_is_found_equal(form: Form, right: str, answer: str) -> None:
    load()
    assert equal(right, as_latex(answer, form))


@pytest.mark.parametrize(
    ("form", "right", "answer"),
    [
        ("number", "42", "43"),
        ("number", "42", "-42"),
        ("number", r"\frac{1}{3}", "0.333333333"),
        ("root", r"5+2\sqrt{3}", r"5-2\sqrt{3}"),
        ("root", r"\sqrt{2}", "99/70"),
        ("root", r"\sqrt{2}", "2/0"),
        ("polynomial", "3x^2 - x + 1", "3x^2 - x"),
        ("polynomial", "3x^2 - x + 1", "x"),
    ],
)
def test_what_is_not_equal_is_not(form: Form, right: str, answer: str) -> None:
    load()
    assert not equal(right, as_latex(answer, form))


@pytest.mark.parametrize("form", ["number", "root", "polynomial"])
@pytest.mark.parametrize(
    "answer",
    [
        "",
        " ",
        "9^9^9^9",
        "((9^9)^9)^9",
        "2^(9^9)",
        "2^{99}",
        "x^{x}",
        "factorial(10)",
        "10!",
        "1, 2, 3",
        "1 or 2",
        "{1, 2}",
        "x = y",
        r"\text{correct}",
        r"\input{secrets}",
        "__import__('os')",
        "7 \\vee 8",
        "(" * 60 + "1" + ")" * 60,
        "-" * 100 + "1",
        "1+" * 59 + "1",
        "9" * 40,
        "sqrt(" * 5 + "2" + ")" * 5,
        "the answer is 42",
        "nan",
        "oo",
    ],
)
def test_what_could_take_for_ever_or_hedges_is_refused(form: Form, answer: str) -> None:
    with pytest.raises(AnswerRefused):
        as_latex(answer, form)


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("root", "((99^2)^2)^2 + sqrt(999999999989)"),
        ("root", "(((999999999989)^3)/(3-999999999989))/((50)/(999999999989))+(sqrt(50)*20+sqrt(12)/52)*(38-23)"),
        ("root", "sqrt(sqrt(sqrt(999999999989)))/(1-999999999988/999999999989)"),
        ("polynomial", "(x+13)*((x+x)+(x+x))+999999999989*12-999999999989-x-999999999989"),
        ("polynomial", "(x^2+x+1)^4/(x-1)/(x-2)/(x-3)/(x-4)"),
    ],
)
def test_the_worst_that_is_taken_is_compared_at_once(form: Form, answer: str) -> None:
    load()
    latex = as_latex(answer, form)
    began = time.monotonic()
    assert not equal(r"5+2\sqrt{3}", latex)
    assert time.monotonic() - began < AT_ONCE


def test_a_number_is_to_be_worked_out() -> None:
    env = Math(kinds=["change"])
    env.reset(options={"split": "test", "task": 0})
    answer = env.splits["test"][0]["answer"]
    observation, reward, terminated, *_ = env.step(call("answer", answer=f"{answer} + 0"))
    assert "one number that is worked out" in observation[0]["content"]
    assert (reward, terminated) == (0.0, False)
    observation, reward, terminated, _, info = env.step(call("answer", answer=answer))
    assert (reward, terminated, info["rewards"]) == (1.0, True, {"correct": 1.0})


def test_the_calculator_answers_and_explains() -> None:
    env = Math()
    env.reset(seed=0)
    for expression, said in (
        ("6 * 7", "42"),
        ("10 / 4", "5/2 (about 2.5)"),
        ("9^9^9^9", "Error: the numbers become too large"),
        ("sqrt(2)", "Error: sqrt(2) is no fraction; it is about 1.41421356237"),
        ("10^400 / 3", f"{Fraction(10**400, 3)}"),
    ):
        assert env.step(call("calculator", expression=expression))[0][0]["content"] == said


def test_the_first_answer_counts() -> None:
    env = Math()
    env.reset(options={"split": "test", "task": 0})
    right = env.splits["test"][0]["answer"]
    message = call("answer", answer="123456789")
    message["tool_calls"] += call("answer", answer=right)["tool_calls"]
    _, reward, terminated, *_ = env.step(message)
    assert (reward, terminated) == (0.0, True)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_problems_that_are_the_same_each_time(kind: str) -> None:
    for held_out in (False, True):
        made = [problem(number, [kind], held_out=held_out) for number in range(30)]
        assert made == [problem(number, [kind], held_out=held_out) for number in range(30)]
        assert {one.kind for one in made} == {kind}
        assert len({one.question for one in made}) > 20
        assert all(as_latex(one.answer, one.form) for one in made)


def test_kinds_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kinds are some of change, .* not topology"):
        Math(kinds=["topology"])
    with pytest.raises(ValueError, match="not none"):
        Math(kinds=[])
