"""Writes any number of OCaml problems: `python3 many.py 4000 > many.jsonl`, for `--set ocaml.problems=many.jsonl`.

A problem is drawn from a family, with a random name, condition and formula. One wording in sixteen is for testing and is
asked once; no wording is in both splits. A model trained from scratch can learn from these, since they repeat each pattern
more often than hand-written problems could.
"""

import json
import random
import sys

import problems
from problems import INTS, family, problem

NUMBERS = [0, 1, 2, 5, 7, 10]
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


def name(rng):
    """A word that no library has: consonants and vowels by turns."""
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.choice([2, 2, 3])))


def formula(rng):
    """An operation on a number: in words, in Python, in OCaml with `x`."""
    a, b = rng.randint(2, 9), rng.randint(1, 20)
    return rng.choice([
        (f"times {a}", lambda x: a * x, f"{a} * x"),
        (f"plus {b}", lambda x: x + b, f"x + {b}"),
        (f"minus {b}", lambda x: x - b, f"x - {b}"),
        (f"taken from {b}", lambda x: b - x, f"{b} - x"),
        ("squared", lambda x: x * x, "x * x"),
        ("negated", lambda x: -x, "- x"),
        (f"squared plus {b}", lambda x: x * x + b, f"x * x + {b}"),
        (f"squared times {a}", lambda x: a * x * x, f"{a} * x * x"),
        (f"times {a} plus {b}", lambda x: a * x + b, f"{a} * x + {b}"),
        (f"times {a} minus {b}", lambda x: a * x - b, f"{a} * x - {b}"),
    ])


def condition(rng):
    """A condition on a number: in words, in Python, in OCaml with `x`."""
    a, b = rng.randint(2, 5), rng.randint(0, 9)
    return rng.choice([
        (f"above {b}", lambda x: x > b, f"x > {b}"),
        (f"below {b}", lambda x: x < b, f"x < {b}"),
        (f"at least {b}", lambda x: x >= b, f"x >= {b}"),
        (f"at most {b}", lambda x: x <= b, f"x <= {b}"),
        (f"other than {b}", lambda x: x != b, f"x <> {b}"),
        ("even", lambda x: x % 2 == 0, "x mod 2 = 0"),
        ("odd", lambda x: x % 2 == 1, "x mod 2 <> 0"),
        (f"divisible by {a}", lambda x: x % a == 0, f"x mod {a} = 0"),
        (f"from {a} to {a + b}", lambda x: a <= x <= a + b, f"x >= {a} && x <= {a + b}"),
    ])


def one(rng):
    """Adds a problem."""
    f, (fw, fp, fo), (cw, cp, co) = name(rng), formula(rng), condition(rng)
    on_n = fo.replace("x", "n")

    def over(kind, result, words, function, empty, step):
        family(kind, 1)
        code = f"match l with\n  | [] -> {empty}\n  | x :: r -> {step}"
        problem(f, "l : int list", result, words, function, code, INTS)

    def to(kind, result, words, function, empty, step):
        family(kind, 1)
        problem(f, "n : int", result, words, function, f"if n <= 0 then {empty} else {step}", NUMBERS)

    rng.choice([
        lambda: over("sum", "int", f"The sum of the elements, each {fw}.", lambda l: sum(map(fp, l)), "0", f"({fo}) + {f} r"),
        lambda: over("map", "int list", f"Each element {fw}.", lambda l: [fp(x) for x in l], "[]", f"({fo}) :: {f} r"),
        lambda: over("count", "int", f"How many elements are {cw}.", lambda l: sum(map(cp, l)), "0", f"(if {co} then 1 else 0) + {f} r"),
        lambda: over("filter", "int list", f"Keeps the elements that are {cw}.", lambda l: [x for x in l if cp(x)], "[]", f"if {co} then x :: {f} r else {f} r"),
        lambda: over("any", "bool", f"Whether an element is {cw}.", lambda l: any(map(cp, l)), "false", f"({co}) || {f} r"),
        lambda: over("all", "bool", f"Whether all elements are {cw}.", lambda l: all(map(cp, l)), "true", f"({co}) && {f} r"),
        lambda: over("some", "int", f"The sum of the elements that are {cw}.", lambda l: sum(x for x in l if cp(x)), "0", f"if {co} then x + {f} r else {f} r"),
        lambda: over("both", "int list", f"Keeps the elements that are {cw}, each {fw}.", lambda l: [fp(x) for x in l if cp(x)], "[]", f"if {co} then ({fo}) :: {f} r else {f} r"),
        lambda: to("series", "int", f"The sum of 1 to n, each {fw}.", lambda n: sum(map(fp, range(1, n + 1))), "0", f"({on_n}) + {f} (n - 1)"),
        lambda: to("down", "int list", f"The numbers from n down to 1, each {fw}.", lambda n: [fp(i) for i in range(n, 0, -1)], "[]", f"({on_n}) :: {f} (n - 1)"),
    ])()


def main():
    rng = random.Random(1)
    problems.PROBLEMS.clear()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    ids, splits = set(), {}
    while len(ids) < count:
        one(rng)
        row = problems.PROBLEMS.pop()
        row["wrong"] = []
        # What is asked decides, so that nothing is asked in both splits; for testing it is asked once.
        words = row["words"].split(". ")[0]
        is_new = words not in splits
        split = splits.setdefault(words, "test" if rng.random() < 1 / 16 else "train")
        if row["id"] not in ids and (is_new or split == "train"):
            ids.add(row["id"])
            print(json.dumps({"split": split, **row}))


if __name__ == "__main__":
    main()
