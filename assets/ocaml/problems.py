"""Writes the OCaml problems: `python3 problems.py > problems.jsonl`.

A problem is a function to be completed: what it does in words, its signature, calls with their values, a solution and
wrong answers. The values come from a second definition of each function, in Python.
"""

import json
import math

PROBLEMS = []
FAMILY = ["", 1, ""]


def family(name, difficulty, prelude=""):
    """The problems that follow are of this family."""
    FAMILY[:] = [name, difficulty, prelude]


def literal(value, kind):
    """A value of a type as OCaml has it."""
    kind = kind.strip()
    if kind.endswith(" list"):
        return "[" + "; ".join(literal(v, kind[:-5]) for v in value) + "]"
    if kind.endswith(" array"):
        return "[|" + "; ".join(literal(v, kind[:-6]) for v in value) + "|]"
    if kind.endswith(" option"):
        return "None" if value is None else f"(Some {literal(value, kind[:-7])})"
    if kind.startswith("(") and kind.endswith(")"):
        return literal(value, kind[1:-1])
    if "*" in kind:
        return "(" + ", ".join(literal(v, k) for v, k in zip(value, kind.split("*"))) + ")"
    if kind == "int":
        return f"({value})" if value < 0 else str(value)
    if kind == "bool":
        return "true" if value else "false"
    if kind == "string":
        return json.dumps(value)
    if kind == "char":
        return f"'{value}'"
    return value  # as it stands


WRONG = {"int": ["0", "1"], "bool": ["true", "false"], "string": ['""']}


def problem(name, arguments, result, words, function, solution, calls, wrong=()):
    """`arguments` is a text such as `l : int list, k : int`; `calls` are tuples, or lists of bare values."""
    pairs = [tuple(part.split(" : ")) for part in arguments.split(", ")]
    head = f"let rec {name} " + " ".join(f"({n} : {t})" for n, t in pairs) + f" : {result} ="
    kinds = [t for _, t in pairs]
    signature = f"val {name} : " + " -> ".join([f"({t})" if "->" in t else t for t in kinds] + [result])
    tests = []
    for call in calls:
        call = call if isinstance(call, tuple) else (call,)
        text = " ".join([name] + [literal(v, k) for v, k in zip(call, kinds)])
        tests.append([text, literal(function(*call), result)])
    constant = WRONG.get(result, ["[]"] if result.endswith(" list") else ["None"] if result.endswith(" option") else [])
    example = f"{tests[1][0]} = {tests[1][1]}"
    PROBLEMS.append({
        "id": f"{FAMILY[0]}/{name}", "family": FAMILY[0], "difficulty": FAMILY[1], "prelude": FAMILY[2],
        "words": f"{words} {example}", "head": head, "signature": signature, "tests": tests,
        "solution": solution, "wrong": [*constant, "failwith \"todo\"", *wrong],
    })


INTS = [[], [3], [1, 2, 3, 4], [-5, 0, 5, 10, -2], [7, 7, 2, 9, 4, 6], [-1, -8, -3], [12, 3, 8]]
NUMBERS = [0, 1, 2, 5, 7, 10, 12, 30]
WORDS = ["", "a", "grove", "level", "Banana", "aaab", "xyzzy"]


family("fold", 1)
for name, words, term, code in [
    ("total", "The sum of a list.", lambda x: x, "x"),
    ("sum_squares", "The sum of the squares of a list.", lambda x: x * x, "x * x"),
    ("sum_doubles", "The sum of a list's elements, each doubled.", lambda x: 2 * x, "2 * x"),
    ("sum_abs", "The sum of the absolute values of a list.", abs, "abs x"),
    ("sum_triples", "The sum of a list's elements, each times 3.", lambda x: 3 * x, "3 * x"),
    ("sum_next", "The sum of a list's elements, each plus 1.", lambda x: x + 1, "x + 1"),
    ("sum_cubes", "The sum of the cubes of a list.", lambda x: x**3, "x * x * x"),
    ("sum_negated", "The sum of a list's elements, each negated.", lambda x: -x, "- x"),
]:
    problem(name, "l : int list", "int", words, lambda l, t=term: sum(map(t, l)),
            f"match l with\n  | [] -> 0\n  | x :: r -> ({code}) + {name} r", INTS,
            [f"match l with\n  | [] -> 1\n  | x :: r -> ({code}) + {name} r", f"match l with [] -> 0 | x :: _ -> {code}"])
problem("product", "l : int list", "int", "The product of a list; 1 of an empty one.", math.prod,
        "match l with\n  | [] -> 1\n  | x :: r -> x * product r", INTS, ["match l with [] -> 0 | x :: r -> x * product r"])
problem("length", "l : int list", "int", "The number of elements.", len, "match l with\n  | [] -> 0\n  | _ :: r -> 1 + length r", INTS)
for name, words, start, pick, op in [
    ("largest", "The largest element; 0 of an empty list.", 0, max, ">"),
    ("smallest", "The smallest element; 0 of an empty list.", 0, min, "<"),
]:
    problem(name, "l : int list", "int", words, lambda l, p=pick: p(l) if l else 0,
            f"match l with\n  | [] -> 0\n  | [x] -> x\n  | x :: r -> let m = {name} r in if x {op} m then x else m", INTS,
            ["match l with [] -> 0 | x :: _ -> x"])

family("count", 1)
for name, words, test, code in [
    ("count_even", "How many elements are even.", lambda x: x % 2 == 0, "x mod 2 = 0"),
    ("count_odd", "How many elements are odd.", lambda x: x % 2 != 0, "x mod 2 <> 0"),
    ("count_positive", "How many elements are above 0.", lambda x: x > 0, "x > 0"),
    ("count_negative", "How many elements are below 0.", lambda x: x < 0, "x < 0"),
    ("count_zero", "How many elements are 0.", lambda x: x == 0, "x = 0"),
    ("count_above_5", "How many elements are above 5.", lambda x: x > 5, "x > 5"),
    ("count_above_3", "How many elements are above 3.", lambda x: x > 3, "x > 3"),
    ("count_below_4", "How many elements are below 4.", lambda x: x < 4, "x < 4"),
    ("count_small", "How many elements are from 1 to 4.", lambda x: 1 <= x <= 4, "x >= 1 && x <= 4"),
    ("count_threes", "How many elements 3 divides.", lambda x: x % 3 == 0, "x mod 3 = 0"),
    ("count_sevens", "How many elements are 7.", lambda x: x == 7, "x = 7"),
]:
    problem(name, "l : int list", "int", words, lambda l, t=test: sum(map(t, l)),
            f"match l with\n  | [] -> 0\n  | x :: r -> (if {code} then 1 else 0) + {name} r", INTS + [[0, 0, 9, 7, 4, 6, -3]],
            [f"match l with [] -> 0 | _ :: r -> 1 + {name} r", f"match l with [] -> 0 | x :: _ -> if {code} then 1 else 0"])
problem("count_of", "k : int, l : int list", "int", "How often k is in a list.", lambda k, l: l.count(k),
        "match l with\n  | [] -> 0\n  | x :: r -> (if x = k then 1 else 0) + count_of k r",
        [(1, []), (7, [7, 1, 7]), (2, [1, 2, 3]), (9, [1, 2]), (0, [0, 0, 0])])

family("map", 1)
for name, words, term, code in [
    ("add_1", "Adds 1 to each element.", lambda x: x + 1, "x + 1"),
    ("add_3", "Adds 3 to each element.", lambda x: x + 3, "x + 3"),
    ("add_10", "Adds 10 to each element.", lambda x: x + 10, "x + 10"),
    ("minus_2", "Takes 2 from each element.", lambda x: x - 2, "x - 2"),
    ("double", "Doubles each element.", lambda x: 2 * x, "2 * x"),
    ("triple", "Multiplies each element by 3.", lambda x: 3 * x, "3 * x"),
    ("times_10", "Multiplies each element by 10.", lambda x: 10 * x, "10 * x"),
    ("squares", "Squares each element.", lambda x: x * x, "x * x"),
    ("negate", "Negates each element.", lambda x: -x, "- x"),
    ("absolute", "The absolute value of each element.", abs, "abs x"),
    ("at_least_0", "Each element, or 0 where it is below 0.", lambda x: max(x, 0), "if x < 0 then 0 else x"),
    ("at_most_5", "Each element, or 5 where it is above 5.", lambda x: min(x, 5), "if x > 5 then 5 else x"),
    ("twice_plus_1", "Twice each element plus 1.", lambda x: 2 * x + 1, "2 * x + 1"),
]:
    problem(name, "l : int list", "int list", words, lambda l, t=term: [t(x) for x in l],
            f"match l with\n  | [] -> []\n  | x :: r -> ({code}) :: {name} r", INTS,
            ["l", f"match l with [] -> [] | x :: r -> ({code}) :: r", f"match l with [] -> [] | x :: r -> {name} r @ [{code}]"])
problem("is_even_each", "l : int list", "bool list", "Whether each element is even.", lambda l: [x % 2 == 0 for x in l],
        "match l with\n  | [] -> []\n  | x :: r -> (x mod 2 = 0) :: is_even_each r", INTS)
problem("lengths", "l : string list", "int list", "The length of each string.", lambda l: [len(x) for x in l],
        "match l with\n  | [] -> []\n  | x :: r -> String.length x :: lengths r", [[], ["a", "bcd"], ["", "xy", "hello"], ["z"]])
problem("to_strings", "l : int list", "string list", "Each number as a string.", lambda l: [str(x) for x in l],
        "match l with\n  | [] -> []\n  | x :: r -> string_of_int x :: to_strings r", INTS)

family("filter", 1)
for name, words, test, code in [
    ("evens", "Keeps the even elements.", lambda x: x % 2 == 0, "x mod 2 = 0"),
    ("odds", "Keeps the odd elements.", lambda x: x % 2 != 0, "x mod 2 <> 0"),
    ("positives", "Keeps the elements above 0.", lambda x: x > 0, "x > 0"),
    ("negatives", "Keeps the elements below 0.", lambda x: x < 0, "x < 0"),
    ("nonzero", "Keeps the elements other than 0.", lambda x: x != 0, "x <> 0"),
    ("above_3", "Keeps the elements above 3.", lambda x: x > 3, "x > 3"),
    ("above_6", "Keeps the elements above 6.", lambda x: x > 6, "x > 6"),
    ("below_5", "Keeps the elements below 5.", lambda x: x < 5, "x < 5"),
    ("multiples_of_3", "Keeps the elements that 3 divides.", lambda x: x % 3 == 0, "x mod 3 = 0"),
    ("multiples_of_4", "Keeps the elements that 4 divides.", lambda x: x % 4 == 0, "x mod 4 = 0"),
    ("not_7", "Removes every 7.", lambda x: x != 7, "x <> 7"),
    ("within_10", "Keeps the elements from 1 to 10.", lambda x: 1 <= x <= 10, "x >= 1 && x <= 10"),
]:
    problem(name, "l : int list", "int list", words, lambda l, t=test: [x for x in l if t(x)],
            f"match l with\n  | [] -> []\n  | x :: r -> if {code} then x :: {name} r else {name} r", INTS + [[0, 0, 11, 7, 4, 6, -3]],
            ["l", f"match l with [] -> [] | x :: r -> if not ({code}) then x :: {name} r else {name} r"])
problem("without", "k : int, l : int list", "int list", "Removes every k.", lambda k, l: [x for x in l if x != k],
        "match l with\n  | [] -> []\n  | x :: r -> if x = k then without k r else x :: without k r",
        [(1, []), (2, [2, 3, 2]), (7, [1, 7, 7, 2]), (0, [1, 2]), (5, [5, 5])], ["l"])
problem("longer_than", "k : int, l : string list", "string list", "Keeps the strings longer than k.",
        lambda k, l: [x for x in l if len(x) > k],
        "match l with\n  | [] -> []\n  | x :: r -> if String.length x > k then x :: longer_than k r else longer_than k r",
        [(1, []), (2, ["ab", "abc", "x"]), (0, ["", "q"]), (3, ["hello", "abc", "abcd"])], ["l"])

family("search", 2)
problem("contains", "k : int, l : int list", "bool", "Whether k is in a list.", lambda k, l: k in l,
        "match l with\n  | [] -> false\n  | x :: r -> x = k || contains k r", [(1, []), (2, [1, 2]), (3, [1, 2]), (5, [5]), (0, [4, 4])])
problem("index_of", "k : int, l : int list", "int", "The place of the first k, from 0; -1 where there is none.",
        lambda k, l: l.index(k) if k in l else -1,
        "match l with\n  | [] -> -1\n  | x :: r -> if x = k then 0 else let i = index_of k r in if i < 0 then -1 else i + 1",
        [(1, []), (2, [1, 2]), (3, [1, 2]), (5, [5, 5]), (4, [1, 2, 3, 4])],
        ["match l with [] -> -1 | x :: r -> if x = k then 0 else 1 + index_of k r"])
problem("last", "l : int list", "int", "The last element; 0 of an empty list.", lambda l: l[-1] if l else 0,
        "match l with\n  | [] -> 0\n  | [x] -> x\n  | _ :: r -> last r", INTS, ["match l with [] -> 0 | x :: _ -> x"])
problem("nth_or_0", "n : int, l : int list", "int", "Element n, from 0; 0 where there is none.",
        lambda n, l: l[n] if 0 <= n < len(l) else 0,
        "match l with\n  | [] -> 0\n  | x :: r -> if n = 0 then x else nth_or_0 (n - 1) r",
        [(0, []), (1, [4, 5, 6]), (0, [9]), (3, [1, 2]), (2, [1, 2, 3])])
for k in [2, 4, 6, 9]:
    name = f"first_above_{k}"
    problem(name, "l : int list", "int", f"The first element above {k}; 0 where there is none.",
            lambda l, k=k: next((x for x in l if x > k), 0),
            f"match l with\n  | [] -> 0\n  | x :: r -> if x > {k} then x else {name} r", INTS + [[1, 10, 20]],
            ["match l with [] -> 0 | x :: _ -> x"])
for name, words, test, code in [
    ("all_positive", "Whether all elements are above 0.", lambda x: x > 0, "x > 0"),
    ("all_even", "Whether all elements are even.", lambda x: x % 2 == 0, "x mod 2 = 0"),
    ("all_small", "Whether all elements are below 10.", lambda x: x < 10, "x < 10"),
]:
    problem(name, "l : int list", "bool", words, lambda l, t=test: all(map(t, l)),
            f"match l with\n  | [] -> true\n  | x :: r -> {code} && {name} r", INTS + [[2, 4]],
            [f"match l with [] -> false | x :: r -> {code} && {name} r"])
for name, words, test, code in [
    ("any_negative", "Whether any element is below 0.", lambda x: x < 0, "x < 0"),
    ("any_odd", "Whether any element is odd.", lambda x: x % 2 != 0, "x mod 2 <> 0"),
    ("any_large", "Whether any element is above 8.", lambda x: x > 8, "x > 8"),
]:
    problem(name, "l : int list", "bool", words, lambda l, t=test: any(map(t, l)),
            f"match l with\n  | [] -> false\n  | x :: r -> {code} || {name} r", INTS + [[2, 4]],
            [f"match l with [] -> true | x :: r -> {code} || {name} r"])

family("build", 1)
problem("range", "a : int, b : int", "int list", "The numbers from a to b.", lambda a, b: list(range(a, b + 1)),
        "if a > b then [] else a :: range (a + 1) b", [(1, 0), (1, 4), (3, 3), (-2, 1)], ["if a >= b then [] else a :: range (a + 1) b"])
problem("countdown", "n : int", "int list", "The numbers from n down to 1.", lambda n: list(range(n, 0, -1)),
        "if n <= 0 then [] else n :: countdown (n - 1)", [0, 3, 1, 6], ["if n <= 0 then [0] else n :: countdown (n - 1)"])
problem("repeat", "n : int, x : int", "int list", "A list of n times x.", lambda n, x: [x] * n,
        "if n <= 0 then [] else x :: repeat (n - 1) x", [(0, 1), (3, 7), (1, 0), (5, -1)], ["[x]"])
for k in [2, 3, 5, 10]:
    name = f"first_multiples_{k}"
    problem(name, "n : int", "int list", f"The first n multiples of {k}, the largest first.", lambda n, k=k: [k * i for i in range(n, 0, -1)],
            f"if n <= 0 then [] else {k} * n :: {name} (n - 1)", [0, 3, 1, 5], [f"if n <= 0 then [] else {k} :: {name} (n - 1)"])
for k in [2, 3]:
    name = f"powers_of_{k}"
    problem(name, "n : int", "int list", f"n powers of {k}, the largest first, down to 1.", lambda n, k=k: [k**i for i in range(n - 1, -1, -1)],
            f"let rec power i = if i = 0 then 1 else {k} * power (i - 1) in\n  if n <= 0 then [] else power (n - 1) :: {name} (n - 1)", [0, 3, 1, 5])
problem("squares_to", "n : int", "int list", "The squares of n down to 1.", lambda n: [i * i for i in range(n, 0, -1)],
        "if n <= 0 then [] else n * n :: squares_to (n - 1)", [0, 3, 1, 5])
problem("stutter", "l : int list", "int list", "Each element twice in a row.", lambda l: [x for x in l for _ in (0, 1)],
        "match l with\n  | [] -> []\n  | x :: r -> x :: x :: stutter r", INTS, ["l @ l"])

family("two_lists", 2)
TWO = [([], []), ([1, 2], [3, 4]), ([5], [6]), ([1, 2, 3], [10, 20, 30]), ([0, -1], [7, 7])]
for name, words, term, code in [
    ("sums", "The sums of two lists' elements, in pairs.", lambda a, b: a + b, "x + y"),
    ("differences", "The differences of two lists' elements, in pairs.", lambda a, b: a - b, "x - y"),
    ("products", "The products of two lists' elements, in pairs.", lambda a, b: a * b, "x * y"),
    ("larger_ones", "The larger of two lists' elements, in pairs.", max, "if x > y then x else y"),
    ("smaller_ones", "The smaller of two lists' elements, in pairs.", min, "if x < y then x else y"),
]:
    problem(name, "a : int list, b : int list", "int list", words + " The longer list's rest is left out.",
            lambda a, b, t=term: [t(x, y) for x, y in zip(a, b)],
            f"match a, b with\n  | x :: r, y :: s -> ({code}) :: {name} r s\n  | _ -> []", TWO + [([1, 2, 9], [3])], ["a"])
problem("dot", "a : int list, b : int list", "int", "The sum of the products of two lists' elements, in pairs.",
        lambda a, b: sum(x * y for x, y in zip(a, b)), "match a, b with\n  | x :: r, y :: s -> x * y + dot r s\n  | _ -> 0", TWO)
problem("interleave", "a : int list, b : int list", "int list", "An element of a, one of b, and so on; then what is left.",
        lambda a, b: [x for p in zip(a, b) for x in p] + a[len(b):] + b[len(a):],
        "match a, b with\n  | [], l | l, [] -> l\n  | x :: r, y :: s -> x :: y :: interleave r s", TWO + [([1, 2, 9], [3])], ["a @ b"])
problem("append", "a : int list, b : int list", "int list", "The elements of a, then those of b, without @.",
        lambda a, b: a + b, "match a with\n  | [] -> b\n  | x :: r -> x :: append r b", TWO, ["b @ a"])
problem("merge", "a : int list, b : int list", "int list", "Two lists in ascending order as one.", lambda a, b: sorted(a + b),
        "match a, b with\n  | [], l | l, [] -> l\n  | x :: r, y :: s -> if x <= y then x :: merge r b else y :: merge a s",
        [([], []), ([1, 4], [2, 3]), ([5], [6, 7]), ([1, 1], [1]), ([3], [])], ["a @ b"])
problem("equal_lists", "a : int list, b : int list", "bool", "Whether two lists are the same, without = on lists.",
        lambda a, b: a == b, "match a, b with\n  | [], [] -> true\n  | x :: r, y :: s -> x = y && equal_lists r s\n  | _ -> false",
        [([], []), ([1], [1, 2]), ([1, 2], [1, 2]), ([3], [4])])

family("pieces", 2)
AT = [(0, [1, 2]), (2, [1, 2, 3]), (5, [1, 2]), (1, []), (3, [4, 5, 6, 7])]
problem("take", "n : int, l : int list", "int list", "The first n elements.", lambda n, l: l[:n],
        "match l with\n  | x :: r when n > 0 -> x :: take (n - 1) r\n  | _ -> []", AT, ["l"])
problem("drop", "n : int, l : int list", "int list", "The list without its first n elements.", lambda n, l: l[n:],
        "match l with\n  | _ :: r when n > 0 -> drop (n - 1) r\n  | _ -> l", AT, ["l"])


def while_(l, t):
    n = 0
    while n < len(l) and t(l[n]):
        n += 1
    return n


for what, test, code in [("positive", lambda x: x > 0, "x > 0"), ("even", lambda x: x % 2 == 0, "x mod 2 = 0"), ("small", lambda x: x < 5, "x < 5")]:
    adjective = {"positive": "above 0", "even": "even", "small": "below 5"}[what]
    problem(f"take_{what}", "l : int list", "int list", f"The elements before the first that is not {adjective}.",
            lambda l, t=test: l[: while_(l, t)], f"match l with\n  | x :: r when {code} -> x :: take_{what} r\n  | _ -> []",
            INTS + [[2, 4, 7, 2]], ["l", f"List.filter (fun x -> {code}) l"])
    problem(f"drop_{what}", "l : int list", "int list", f"The list from the first element on that is not {adjective}.",
            lambda l, t=test: l[while_(l, t):], f"match l with\n  | x :: r when {code} -> drop_{what} r\n  | _ -> l",
            INTS + [[2, 4, 7, 2]], ["l", f"List.filter (fun x -> not ({code})) l"])
problem("every_other", "l : int list", "int list", "The first, third, fifth element, and so on.", lambda l: l[::2],
        "match l with\n  | x :: _ :: r -> x :: every_other r\n  | l -> l", INTS, ["l"])
problem("without_last", "l : int list", "int list", "The list without its last element.", lambda l: l[:-1],
        "match l with\n  | [] | [_] -> []\n  | x :: r -> x :: without_last r", INTS, ["l"])
problem("swap_pairs", "l : int list", "int list", "Swaps the first two elements, the next two, and so on.",
        lambda l: [x for i in range(0, len(l), 2) for x in l[i:i + 2][::-1]],
        "match l with\n  | x :: y :: r -> y :: x :: swap_pairs r\n  | l -> l", INTS, ["l"])

family("order", 2)
problem("insert", "k : int, l : int list", "int list", "Puts k in its place in a list in ascending order.", lambda k, l: sorted(l + [k]),
        "match l with\n  | x :: r when x < k -> x :: insert k r\n  | _ -> k :: l", [(1, []), (3, [1, 5]), (0, [2]), (9, [1, 2]), (4, [4, 6])], ["k :: l"])
problem("sort", "l : int list", "int list", "The list in ascending order, without List.sort.", sorted,
        "let rec put k l = match l with x :: r when x < k -> x :: put k r | _ -> k :: l in\n  match l with\n  | [] -> []\n  | x :: r -> put x (sort r)",
        INTS, ["l"])
problem("ascending", "l : int list", "bool", "Whether no element is larger than the next.", lambda l: l == sorted(l),
        "match l with\n  | x :: (y :: _ as r) -> x <= y && ascending r\n  | _ -> true", INTS + [[1, 1], [2, 1]], ["match l with x :: y :: _ -> x <= y | _ -> true"])
problem("descending", "l : int list", "bool", "Whether no element is smaller than the next.", lambda l: l == sorted(l, reverse=True),
        "match l with\n  | x :: (y :: _ as r) -> x >= y && descending r\n  | _ -> true", INTS + [[1, 1], [2, 1]])
problem("squeeze", "l : int list", "int list", "Keeps one of equal elements in a row.", lambda l: [x for i, x in enumerate(l) if i == 0 or l[i - 1] != x],
        "match l with\n  | x :: (y :: _ as r) -> if x = y then squeeze r else x :: squeeze r\n  | l -> l", INTS + [[1, 1, 2, 2, 2, 1]], ["l"])
problem("reverse", "l : int list", "int list", "The list from the last to the first element.", lambda l: l[::-1],
        "match l with\n  | [] -> []\n  | x :: r -> reverse r @ [x]", INTS, ["l"])
problem("palindrome", "l : int list", "bool", "Whether a list is the same backwards.", lambda l: l == l[::-1],
        "l = List.rev l", [[], [1, 2, 1], [1, 2], [3, 3], [1, 2, 3]])
problem("rotate", "l : int list", "int list", "The first element put last.", lambda l: l[1:] + l[:1],
        "match l with\n  | [] -> []\n  | x :: r -> r @ [x]", INTS, ["l"])
problem("move_zeros", "l : int list", "int list", "The zeros put last.", lambda l: [x for x in l if x] + [x for x in l if not x],
        "List.filter (fun x -> x <> 0) l @ List.filter (fun x -> x = 0) l", INTS + [[0, 1, 0, 2]], ["l"])

family("recursion", 1)
problem("factorial", "n : int", "int", "The product of the numbers from 1 to n.", math.factorial,
        "if n <= 1 then 1 else n * factorial (n - 1)", [0, 3, 1, 5, 10], ["n * (n - 1)"])
problem("power", "b : int, n : int", "int", "b to the power of n.", lambda b, n: b**n,
        "if n = 0 then 1 else b * power b (n - 1)", [(2, 0), (2, 5), (3, 3), (1, 9), (7, 1)], ["b * n"])
problem("fibonacci", "n : int", "int", "Fibonacci number n; the first are 0 and 1.", lambda n: [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55][n],
        "if n < 2 then n else fibonacci (n - 1) + fibonacci (n - 2)", [0, 6, 1, 2, 10], ["n"])
problem("gcd", "a : int, b : int", "int", "The greatest number that divides both.", math.gcd,
        "if b = 0 then a else gcd b (a mod b)", [(4, 0), (12, 18), (7, 5), (9, 3), (100, 75)], ["a", "b"])
for k in [1, 2, 3]:
    term = {1: "n", 2: "n * n", 3: "n * n * n"}[k]
    what = {1: "numbers", 2: "squares", 3: "cubes"}[k]
    problem(f"sum_to_{k}" if k > 1 else "sum_to", "n : int", "int", f"The sum of the {what} from 1 to n.", lambda n, k=k: sum(i**k for i in range(n + 1)),
            f"if n <= 0 then 0 else {term} + {'sum_to' if k == 1 else f'sum_to_{k}'} (n - 1)", [0, 3, 1, 5, 10], [term])
for k in [2, 3, 5]:
    name = f"times_{k}"
    problem(name, "n : int", "int", f"{k} times n, by addition alone.", lambda n, k=k: k * n, f"if n <= 0 then 0 else {k} + {name} (n - 1)", [0, 3, 1, 8], ["n"])
problem("digit_sum", "n : int", "int", "The sum of the decimal digits.", lambda n: sum(map(int, str(n))),
        "if n < 10 then n else n mod 10 + digit_sum (n / 10)", [0, 123, 9, 1000, 98765], ["n mod 10"])
problem("digit_count", "n : int", "int", "How many decimal digits a number has.", lambda n: len(str(n)),
        "if n < 10 then 1 else 1 + digit_count (n / 10)", [0, 123, 9, 1000, 98765])
problem("digit_product", "n : int", "int", "The product of the decimal digits.", lambda n: math.prod(map(int, str(n))),
        "if n < 10 then n else (n mod 10) * digit_product (n / 10)", [7, 123, 0, 1000, 9876])
problem("halvings", "n : int", "int", "How often n can be halved, rounding down, until it is 0.", lambda n: n.bit_length(),
        "if n = 0 then 0 else 1 + halvings (n / 2)", [0, 8, 1, 5, 100])
problem("ones", "n : int", "int", "How many ones are in the binary digits of n.", lambda n: bin(n).count("1"),
        "if n = 0 then 0 else n mod 2 + ones (n / 2)", [0, 7, 1, 8, 100], ["n mod 2"])
problem("collatz", "n : int", "int", "Steps from n to 1: an even number is halved, an odd one tripled plus 1.",
        lambda n: (lambda f: f(f, n))(lambda f, m: 0 if m == 1 else 1 + f(f, m // 2 if m % 2 == 0 else 3 * m + 1)),
        "if n = 1 then 0 else 1 + collatz (if n mod 2 = 0 then n / 2 else 3 * n + 1)", [1, 6, 2, 7, 27])
problem("reverse_digits", "n : int", "int", "The decimal digits in reverse order.", lambda n: int(str(n)[::-1]),
        "let rec go n r = if n = 0 then r else go (n / 10) (10 * r + n mod 10) in\n  go n 0", [0, 123, 9, 100, 98765], ["n"])
problem("choose", "n : int, k : int", "int", "How many ways there are to choose k of n.", math.comb,
        "if k = 0 || k = n then 1 else choose (n - 1) (k - 1) + choose (n - 1) k", [(4, 0), (4, 2), (5, 5), (6, 1), (7, 3)])

family("predicates", 1)
problem("is_prime", "n : int", "bool", "Whether n is prime.", lambda n: n > 1 and all(n % i for i in range(2, n)),
        "let rec free d = d * d > n || (n mod d <> 0 && free (d + 1)) in\n  n > 1 && free 2", [1, 7, 2, 9, 15, 97], ["n mod 2 <> 0"])
problem("is_square", "n : int", "bool", "Whether n is the square of a whole number.", lambda n: math.isqrt(n) ** 2 == n,
        "let rec from i = i * i = n || (i * i < n && from (i + 1)) in\n  from 0", [0, 16, 2, 25, 26])
problem("is_leap", "y : int", "bool", "Whether a year has 366 days.", lambda y: y % 4 == 0 and (y % 100 != 0 or y % 400 == 0),
        "y mod 4 = 0 && (y mod 100 <> 0 || y mod 400 = 0)", [2023, 2024, 1900, 2000, 2100], ["y mod 4 = 0"])
problem("divides", "d : int, n : int", "bool", "Whether d divides n.", lambda d, n: n % d == 0, "n mod d = 0", [(2, 3), (3, 9), (5, 5), (4, 6), (1, 7)], ["d mod n = 0"])
problem("between", "a : int, b : int, x : int", "bool", "Whether x is from a to b.", lambda a, b, x: a <= x <= b,
        "a <= x && x <= b", [(1, 3, 0), (1, 3, 2), (1, 3, 3), (1, 3, 1), (5, 6, 9)], ["a < x && x < b"])
problem("same_sign", "a : int, b : int", "bool", "Whether both are below 0, or neither is.", lambda a, b: (a < 0) == (b < 0),
        "(a < 0) = (b < 0)", [(1, -1), (1, 2), (-3, -4), (0, 5), (-1, 0)])
problem("exclusive", "a : bool, b : bool", "bool", "Whether one of two is true, but not both.", lambda a, b: a != b,
        "a <> b", [(False, False), (True, False), (True, True), (False, True)], ["a || b"])
problem("implies", "a : bool, b : bool", "bool", "Whether a implies b.", lambda a, b: not a or b, "not a || b",
        [(False, False), (True, False), (True, True), (False, True)], ["a && b"])
problem("majority", "a : bool, b : bool, c : bool", "bool", "Whether two of three are true, or all.", lambda a, b, c: a + b + c >= 2,
        "(a && b) || (a && c) || (b && c)", [(False, False, True), (True, False, True), (True, True, True), (False, False, False), (False, True, True)], ["a && b && c"])
problem("is_triangle", "a : int, b : int, c : int", "bool", "Whether no side is as long as the other two together.",
        lambda a, b, c: a < b + c and b < a + c and c < a + b, "a < b + c && b < a + c && c < a + b", [(1, 2, 3), (3, 4, 5), (9, 1, 1), (2, 2, 2), (1, 5, 1)])
for k in [3, 4, 6]:
    problem(f"multiple_of_{k}", "n : int", "bool", f"Whether {k} divides n.", lambda n, k=k: n % k == 0, f"n mod {k} = 0", [1, 2 * k, 2, k + 1, 10], ["n mod 2 = 0"])

family("formulas", 1)
for a, b in [(2, 1), (3, 2), (5, 4), (4, -3), (7, -1), (6, 5)]:
    name = f"line_{a}_{'m' if b < 0 else ''}{abs(b)}"
    sign = "+" if b > 0 else "-"
    problem(name, "x : int", "int", f"{a} times x {'plus' if b > 0 else 'minus'} {abs(b)}.", lambda x, a=a, b=b: a * x + b, f"{a} * x {sign} {abs(b)}", NUMBERS, [f"{a} * x", f"x {sign} {abs(b)}"])
for a, b, c in [(1, 1, 0), (1, 0, 1), (2, 3, 1), (1, -1, 4)]:
    name = f"square_{a}_{'m' if b < 0 else ''}{abs(b)}_{c}"
    code = f"{a} * x * x + ({b}) * x + {c}"
    problem(name, "x : int", "int", f"The value of {a} x^2 + {b} x + {c}.", lambda x, a=a, b=b, c=c: a * x * x + b * x + c, code, NUMBERS, ["x * x"])
problem("distance", "a : int, b : int", "int", "How far two numbers are apart.", lambda a, b: abs(a - b), "abs (a - b)", [(1, 1), (2, 5), (5, 2), (-1, 3)], ["a - b"])
problem("larger", "a : int, b : int", "int", "The larger of two.", max, "if a > b then a else b", [(1, 1), (2, 5), (5, 2), (-1, 3)], ["a"])
problem("largest_of_3", "a : int, b : int, c : int", "int", "The largest of three.", max, "max a (max b c)", [(1, 1, 1), (2, 5, 3), (5, 2, 3), (1, 2, 3)], ["max a b"])
problem("middle", "a : int, b : int, c : int", "int", "The one of three that is neither largest nor smallest.", lambda a, b, c: sorted((a, b, c))[1],
        "max (min a b) (min c (max a b))", [(1, 1, 1), (2, 5, 3), (5, 2, 3), (1, 2, 3), (3, 2, 1)], ["b"])
problem("clamp", "a : int, b : int, x : int", "int", "x, but at least a and at most b.", lambda a, b, x: max(a, min(b, x)),
        "if x < a then a else if x > b then b else x", [(0, 9, 5), (0, 9, -3), (0, 9, 12), (2, 2, 7)], ["x"])
problem("sign", "x : int", "int", "1 above 0, -1 below 0, else 0.", lambda x: (x > 0) - (x < 0), "if x > 0 then 1 else if x < 0 then -1 else 0", [0, 5, -5, 1, -1], ["x"])
problem("rectangle", "w : int, h : int", "int", "The area of a rectangle.", lambda w, h: w * h, "w * h", [(1, 1), (2, 5), (3, 4)], ["w + h"])
problem("perimeter", "w : int, h : int", "int", "The length around a rectangle.", lambda w, h: 2 * (w + h), "2 * (w + h)", [(1, 1), (2, 5), (3, 4)], ["w + h"])
problem("seconds", "h : int, m : int, s : int", "int", "Hours, minutes and seconds in seconds.", lambda h, m, s: 3600 * h + 60 * m + s,
        "3600 * h + 60 * m + s", [(0, 0, 5), (0, 2, 1), (1, 0, 0), (2, 3, 4)], ["h + m + s"])
problem("round_up", "n : int, k : int", "int", "The smallest multiple of k from n on.", lambda n, k: -(-n // k) * k, "(n + k - 1) / k * k", [(0, 5), (7, 5), (10, 5), (1, 8)], ["n / k * k"])

family("strings", 2)
problem("backwards", "s : string", "string", "The string in reverse order.", lambda s: s[::-1],
        "String.init (String.length s) (fun i -> s.[String.length s - 1 - i])", WORDS, ["s"])
problem("is_palindrome", "s : string", "bool", "Whether a string is the same backwards.", lambda s: s == s[::-1],
        "let n = String.length s in\n  let rec same i = i >= n / 2 || (s.[i] = s.[n - 1 - i] && same (i + 1)) in\n  same 0", WORDS)
problem("count_char", "c : char, s : string", "int", "How often c is in a string.", lambda c, s: s.count(c),
        "let n = ref 0 in\n  String.iter (fun d -> if d = c then incr n) s;\n  !n", [("a", ""), ("a", "banana"), ("x", "xyx"), ("q", "grove")])
for c in ["a", "e", "z"]:
    problem(f"count_{c}", "s : string", "int", f"How often the letter {c} is in a string.", lambda s, c=c: s.count(c),
            f"let n = ref 0 in\n  String.iter (fun d -> if d = '{c}' then incr n) s;\n  !n", WORDS + ["zebra", "aezz"])
problem("repeat_string", "n : int, s : string", "string", "The string n times.", lambda n, s: s * n,
        "if n <= 0 then \"\" else s ^ repeat_string (n - 1) s", [(0, "a"), (3, "ab"), (1, "x"), (2, "")], ["s"])
problem("vowels", "s : string", "int", "How many of the letters a, e, i, o, u are in a string.", lambda s: sum(c in "aeiou" for c in s),
        "let n = ref 0 in\n  String.iter (fun c -> if String.contains \"aeiou\" c then incr n) s;\n  !n", WORDS, ["String.length s"])
problem("surround", "s : string", "string", "The string in square brackets.", lambda s: f"[{s}]", "\"[\" ^ s ^ \"]\"", WORDS, ["s", "\"[\" ^ s"])
problem("greet", "s : string", "string", "Hello, the name and an exclamation mark.", lambda s: f"Hello, {s}!", "\"Hello, \" ^ s ^ \"!\"", WORDS, ["s"])
problem("shout", "s : string", "string", "The string in capitals.", lambda s: s.upper(), "String.uppercase_ascii s", WORDS, ["s"])
problem("first_or", "c : char, s : string", "char", "The first character, or c of an empty string.", lambda c, s: s[0] if s else c,
        "if s = \"\" then c else s.[0]", [("q", ""), ("q", "abc"), ("a", "z")], ["c"])
problem("join", "l : string list", "string", "The strings one after the other.", "".join, "match l with\n  | [] -> \"\"\n  | x :: r -> x ^ join r",
        [[], ["a", "bc"], ["x"], ["q", "", "r"]])
problem("join_commas", "l : string list", "string", "The strings with commas between them.", ",".join,
        "match l with\n  | [] -> \"\"\n  | [x] -> x\n  | x :: r -> x ^ \",\" ^ join_commas r", [[], ["a", "bc"], ["x"], ["q", "", "r"]],
        ["match l with [] -> \"\" | x :: r -> x ^ \",\" ^ join_commas r"])
problem("starts_with", "p : string, s : string", "bool", "Whether s starts with p.", lambda p, s: s.startswith(p),
        "String.length p <= String.length s && String.sub s 0 (String.length p) = p", [("a", ""), ("ab", "abc"), ("", "x"), ("b", "abc"), ("abc", "abc")])
problem("to_chars", "s : string", "char list", "The characters of a string.", list, "List.init (String.length s) (fun i -> s.[i])", WORDS)
problem("digits_only", "s : string", "bool", "Whether all characters are digits.", lambda s: all(c in "0123456789" for c in s),
        "let ok = ref true in\n  String.iter (fun c -> if c < '0' || c > '9' then ok := false) s;\n  !ok", ["", "123", "1a", "x", "0"])
problem("replace_spaces", "s : string", "string", "Each space becomes an underscore.", lambda s: s.replace(" ", "_"),
        "String.map (fun c -> if c = ' ' then '_' else c) s", ["", "a b", " x ", "abc"], ["s"])

family("options", 2)
problem("safe_div", "a : int, b : int", "int option", "a divided by b; None where b is 0.", lambda a, b: a // b if b else None,
        "if b = 0 then None else Some (a / b)", [(1, 0), (7, 2), (9, 3), (0, 5)], ["Some (a / b)"])
problem("head", "l : int list", "int option", "The first element, if there is one.", lambda l: l[0] if l else None,
        "match l with\n  | [] -> None\n  | x :: _ -> Some x", INTS)
problem("last_option", "l : int list", "int option", "The last element, if there is one.", lambda l: l[-1] if l else None,
        "match l with\n  | [] -> None\n  | [x] -> Some x\n  | _ :: r -> last_option r", INTS, ["match l with [] -> None | x :: _ -> Some x"])
problem("or_zero", "o : int option", "int", "The number, or 0 where there is none.", lambda o: o or 0, "match o with\n  | None -> 0\n  | Some x -> x", [None, 5, 0, -3])
problem("add_options", "a : int option, b : int option", "int option", "The sum of two numbers, if there are both.",
        lambda a, b: None if a is None or b is None else a + b, "match a, b with\n  | Some x, Some y -> Some (x + y)\n  | _ -> None",
        [(None, None), (1, 2), (None, 3), (4, None)], ["a"])
for k in [1, 5]:
    name = f"option_plus_{k}"
    problem(name, "o : int option", "int option", f"The number plus {k}, if there is one.", lambda o, k=k: None if o is None else o + k,
            f"match o with\n  | None -> None\n  | Some x -> Some (x + {k})", [None, 5, 0, -3], ["o"])
problem("first_even", "l : int list", "int option", "The first even element, if there is one.", lambda l: next((x for x in l if x % 2 == 0), None),
        "match l with\n  | [] -> None\n  | x :: r -> if x mod 2 = 0 then Some x else first_even r", INTS, ["match l with [] -> None | x :: _ -> Some x"])
problem("first_negative", "l : int list", "int option", "The first element below 0, if there is one.", lambda l: next((x for x in l if x < 0), None),
        "match l with\n  | [] -> None\n  | x :: r -> if x < 0 then Some x else first_negative r", INTS)
problem("maximum", "l : int list", "int option", "The largest element, if there is one.", lambda l: max(l) if l else None,
        "match l with\n  | [] -> None\n  | x :: r -> (match maximum r with Some m when m > x -> Some m | _ -> Some x)", INTS, ["match l with [] -> None | x :: _ -> Some x"])
problem("somes", "l : int option list", "int list", "The numbers that there are.", lambda l: [x for x in l if x is not None],
        "match l with\n  | [] -> []\n  | None :: r -> somes r\n  | Some x :: r -> x :: somes r", [[], [1, None, 2], [None], [3]])
problem("lookup", "k : int, l : (int * int) list", "int option", "What is paired with k, if anything.", lambda k, l: dict(reversed(l)).get(k),
        "match l with\n  | [] -> None\n  | (a, b) :: r -> if a = k then Some b else lookup k r", [(1, []), (2, [(1, 5), (2, 6)]), (3, [(1, 5)]), (1, [(1, 7), (1, 8)])])

family("pairs", 1)
problem("swap", "p : int * int", "int * int", "The pair with its halves swapped.", lambda p: (p[1], p[0]), "let a, b = p in\n  (b, a)", [((1, 1),), ((1, 2),), ((0, 9),)], ["p"])
problem("pair_sum", "p : int * int", "int", "The sum of a pair.", sum, "let a, b = p in\n  a + b", [((1, 1),), ((1, 2),), ((0, 9),)], ["fst p"])
problem("in_order", "p : int * int", "int * int", "The pair with its smaller half first.", lambda p: tuple(sorted(p)), "let a, b = p in\n  if a <= b then p else (b, a)",
        [((1, 1),), ((5, 2),), ((0, 9),)], ["p"])
problem("div_mod", "a : int, b : int", "int * int", "The quotient and the remainder.", divmod, "(a / b, a mod b)", [(7, 1), (7, 2), (9, 3), (5, 8)], ["(a, b)"])
problem("smallest_largest", "a : int, b : int, c : int", "int * int", "The smallest and the largest of three.", lambda *l: (min(l), max(l)),
        "(min a (min b c), max a (max b c))", [(1, 1, 1), (3, 1, 2), (5, 6, 4)], ["(a, c)"])
PAIRS = [[], [(1, 2)], [(3, 4), (5, 6)], [(0, 0), (9, 1), (7, 7)]]
problem("firsts", "l : (int * int) list", "int list", "The first halves of pairs.", lambda l: [a for a, _ in l],
        "match l with\n  | [] -> []\n  | (a, _) :: r -> a :: firsts r", PAIRS)
problem("seconds_of", "l : (int * int) list", "int list", "The second halves of pairs.", lambda l: [b for _, b in l],
        "match l with\n  | [] -> []\n  | (_, b) :: r -> b :: seconds_of r", PAIRS)
problem("pair_sums", "l : (int * int) list", "int list", "The sum of each pair.", lambda l: [a + b for a, b in l],
        "match l with\n  | [] -> []\n  | (a, b) :: r -> (a + b) :: pair_sums r", PAIRS)
problem("zip", "a : int list, b : int list", "(int * int) list", "Two lists as pairs; the longer list's rest is left out.", lambda a, b: list(zip(a, b)),
        "match a, b with\n  | x :: r, y :: s -> (x, y) :: zip r s\n  | _ -> []", TWO)
problem("count_equal", "l : (int * int) list", "int", "How many pairs have equal halves.", lambda l: sum(a == b for a, b in l),
        "match l with\n  | [] -> 0\n  | (a, b) :: r -> (if a = b then 1 else 0) + count_equal r", PAIRS)

family("running", 2)
problem("running_sums", "l : int list", "int list", "The sums of the first one, two, three elements, and so on.", lambda l: [sum(l[: i + 1]) for i in range(len(l))],
        "let rec go s l = match l with [] -> [] | x :: r -> (s + x) :: go (s + x) r in\n  go 0 l", INTS, ["l"])
problem("running_max", "l : int list", "int list", "The largest of the first one, two, three elements, and so on.", lambda l: [max(l[: i + 1]) for i in range(len(l))],
        "let rec go m l = match l with [] -> [] | x :: r -> let m = max m x in m :: go m r in\n  go min_int l", INTS, ["l"])
problem("steps", "l : int list", "int list", "How much each element is more than the one before.", lambda l: [b - a for a, b in zip(l, l[1:])],
        "match l with\n  | x :: (y :: _ as r) -> (y - x) :: steps r\n  | _ -> []", INTS, ["l"])
problem("indexed", "l : int list", "(int * int) list", "Each element with its place before it, from 0.", lambda l: list(enumerate(l)),
        "let rec go i l = match l with [] -> [] | x :: r -> (i, x) :: go (i + 1) r in\n  go 0 l", INTS)
problem("alternating", "l : int list", "int", "The first minus the second plus the third, and so on.", lambda l: sum(l[::2]) - sum(l[1::2]),
        "match l with\n  | [] -> 0\n  | x :: r -> x - alternating r", INTS)
problem("from_digits", "l : int list", "int", "The number with these decimal digits.", lambda l: int("".join(map(str, l)) or "0"),
        "List.fold_left (fun n d -> 10 * n + d) 0 l", [[], [1, 2, 3], [7], [0, 5], [9, 0, 0]])
problem("horner", "x : int, l : int list", "int", "The polynomial with these coefficients, the constant first, at x.",
        lambda x, l: sum(c * x**i for i, c in enumerate(l)), "match l with\n  | [] -> 0\n  | c :: r -> c + x * horner x r", [(2, []), (2, [1, 2, 3]), (0, [5, 9]), (3, [0, 1])])
problem("spread", "l : int list", "int", "The largest minus the smallest element; 0 of an empty list.", lambda l: max(l) - min(l) if l else 0,
        "match l with\n  | [] -> 0\n  | x :: r -> List.fold_left max x r - List.fold_left min x r", INTS)

family("functions", 2)
F = "(fun x -> x + 1)"
G = "(fun x -> 2 * x)"
problem("twice", "f : int -> int, x : int", "int", "f of f of x.", lambda f, x: x + 2 if f == F else 4 * x, "f (f x)", [(F, 0), (G, 3), (F, 7)], ["f x", "x"])
problem("thrice", "f : int -> int, x : int", "int", "f applied three times to x.", lambda f, x: x + 3 if f == F else 8 * x, "f (f (f x))", [(F, 0), (G, 3), (F, 7)], ["f x", "f (f x)"])
problem("iterate", "n : int, f : int -> int, x : int", "int", "f applied n times to x.", lambda n, f, x: x + n if f == F else 2**n * x,
        "if n <= 0 then x else iterate (n - 1) f (f x)", [(0, F, 5), (3, G, 1), (4, F, 2)], ["f x"])
problem("compose", "f : int -> int, g : int -> int, x : int", "int", "f of g of x.", lambda f, g, x: 2 * x + 1 if f == F else 2 * (x + 1), "f (g x)", [(F, G, 3), (G, F, 3), (F, G, 0)], ["g (f x)"])
P = "(fun x -> x > 2)"
problem("exists", "p : int -> bool, l : int list", "bool", "Whether p holds for any element.", lambda p, l: any(x > 2 for x in l),
        "match l with\n  | [] -> false\n  | x :: r -> p x || exists p r", [(P, []), (P, [1, 3]), (P, [1, 2])])
problem("for_all", "p : int -> bool, l : int list", "bool", "Whether p holds for all elements.", lambda p, l: all(x > 2 for x in l),
        "match l with\n  | [] -> true\n  | x :: r -> p x && for_all p r", [(P, []), (P, [1, 3]), (P, [3, 4])])
problem("keep", "p : int -> bool, l : int list", "int list", "The elements for which p holds.", lambda p, l: [x for x in l if x > 2],
        "match l with\n  | [] -> []\n  | x :: r -> if p x then x :: keep p r else keep p r", [(P, []), (P, [1, 3]), (P, [3, 4, 0])], ["l"])
problem("apply_all", "f : int -> int, l : int list", "int list", "f of each element.", lambda f, l: [x + 1 if f == F else 2 * x for x in l],
        "match l with\n  | [] -> []\n  | x :: r -> f x :: apply_all f r", [(F, []), (F, [1, 3]), (G, [3, 4])], ["l"])
problem("combine", "f : int -> int -> int, e : int, l : int list", "int", "f of the first element and of what the rest comes to; e of an empty list.",
        lambda f, e, l: sum(l) + e if "+" in f else math.prod(l) * e, "match l with\n  | [] -> e\n  | x :: r -> f x (combine f e r)",
        [("( + )", 0, []), ("( + )", 1, [2, 3]), ("( * )", 1, [2, 3, 4])], ["e"])
problem("build", "n : int, f : int -> int", "int list", "f of 0, of 1, and so on, n of them.", lambda n, f: [x + 1 if f == F else 2 * x for x in range(n)],
        "let rec go i = if i >= n then [] else f i :: go (i + 1) in\n  go 0", [(0, F), (3, F), (4, G)])

TREE = "type tree = Leaf | Node of tree * int * tree"


def node(l, x, r):
    return (l, x, r)


def show(t):
    return "Leaf" if t is None else f"(Node ({show(t[0])}, {literal(t[1], 'int')}, {show(t[2])}))"


ONE = node(None, 4, None)
THREE = node(node(None, 1, None), 3, node(None, 8, None))
LEFT = node(node(node(None, 2, None), 5, None), 9, None)
RIGHT = node(None, 6, node(None, 7, None))
TREES = [None, THREE, ONE, LEFT, RIGHT, node(THREE, -7, ONE)]


def walk(t):
    return [] if t is None else walk(t[0]) + [t[1]] + walk(t[2])


def height(t):
    return 0 if t is None else 1 + max(height(t[0]), height(t[2]))


def on_tree(t, f):
    return None if t is None else f(on_tree(t[0], f), t[1], on_tree(t[2], f))


def tree_problem(name, result, words, function, solution, wrong=(), extra="", first=()):
    """A function of a tree; `extra` arguments come before it, `first` are their values."""
    values = {show(t): t for t in TREES}
    convert = show if result == "tree" else lambda v: v
    calls = [(*f, show(t)) for t in TREES for f in (first or [()])]
    problem(name, extra + "t : tree", result, words, lambda *a: convert(function(*a[:-1], values[a[-1]])), solution, calls, wrong)


family("trees", 3, TREE)
tree_problem("size", "int", "How many nodes a tree has.", lambda t: len(walk(t)), "match t with\n  | Leaf -> 0\n  | Node (l, _, r) -> size l + 1 + size r")
tree_problem("depth", "int", "The nodes on the longest way down.", height, "match t with\n  | Leaf -> 0\n  | Node (l, _, r) -> 1 + max (depth l) (depth r)",
             ["match t with Leaf -> 0 | Node (l, _, _) -> 1 + depth l"])
tree_problem("tree_sum", "int", "The sum of a tree's numbers.", lambda t: sum(walk(t)), "match t with\n  | Leaf -> 0\n  | Node (l, x, r) -> tree_sum l + x + tree_sum r",
             ["match t with Leaf -> 0 | Node (_, x, _) -> x"])
tree_problem("leaves", "int", "How many leaves a tree has.", lambda t: len(walk(t)) + 1, "match t with\n  | Leaf -> 1\n  | Node (l, _, r) -> leaves l + leaves r")
tree_problem("to_list", "int list", "A tree's numbers from left to right.", walk, "match t with\n  | Leaf -> []\n  | Node (l, x, r) -> to_list l @ (x :: to_list r)",
             ["match t with Leaf -> [] | Node (l, x, r) -> x :: to_list l @ to_list r"])
tree_problem("mirror", "tree", "A tree with left and right swapped everywhere.", lambda t: on_tree(t, lambda l, x, r: node(r, x, l)),
             "match t with\n  | Leaf -> Leaf\n  | Node (l, x, r) -> Node (mirror r, x, mirror l)", ["t", "match t with Leaf -> Leaf | Node (l, x, r) -> Node (r, x, l)"])
for k in [1, 10]:
    name = f"tree_add_{k}"
    tree_problem(name, "tree", f"Adds {k} to each number of a tree.", lambda t, k=k: on_tree(t, lambda l, x, r: node(l, x + k, r)),
                 f"match t with\n  | Leaf -> Leaf\n  | Node (l, x, r) -> Node ({name} l, x + {k}, {name} r)", ["t"])
tree_problem("tree_double", "tree", "Doubles each number of a tree.", lambda t: on_tree(t, lambda l, x, r: node(l, 2 * x, r)),
             "match t with\n  | Leaf -> Leaf\n  | Node (l, x, r) -> Node (tree_double l, 2 * x, tree_double r)", ["t"])
tree_problem("has", "bool", "Whether k is in a tree.", lambda k, t: k in walk(t), "match t with\n  | Leaf -> false\n  | Node (l, x, r) -> x = k || has k l || has k r",
             ["match t with Leaf -> false | Node (_, x, _) -> x = k"], "k : int, ", [(3,), (8,)])
tree_problem("tree_max", "int", "The largest number of a tree, but at least 0.", lambda t: max([0, *walk(t)]),
             "match t with\n  | Leaf -> 0\n  | Node (l, x, r) -> max x (max (tree_max l) (tree_max r))")
tree_problem("count_even_nodes", "int", "How many numbers of a tree are even.", lambda t: sum(x % 2 == 0 for x in walk(t)),
             "match t with\n  | Leaf -> 0\n  | Node (l, x, r) -> count_even_nodes l + (if x mod 2 = 0 then 1 else 0) + count_even_nodes r")
tree_problem("leftmost", "int", "The number farthest to the left; 0 of a leaf.", lambda t: (walk(t) or [0])[0],
             "match t with\n  | Leaf -> 0\n  | Node (Leaf, x, _) -> x\n  | Node (l, _, _) -> leftmost l", ["match t with Leaf -> 0 | Node (_, x, _) -> x"])
tree_problem("is_search_tree", "bool", "Whether a tree's numbers ascend from left to right.", lambda t: walk(t) == sorted(walk(t)),
             "let rec go t = match t with Leaf -> [] | Node (l, x, r) -> go l @ (x :: go r) in\n  let l = go t in\n  l = List.sort compare l")

COLOUR = "type colour = Red | Green | Blue"
family("variants", 2, COLOUR)
COLOURS = ["Red", "Green", "Blue"]
problem("colour_name", "c : colour", "string", "The colour's name in lower case.", str.lower, "match c with\n  | Red -> \"red\"\n  | Green -> \"green\"\n  | Blue -> \"blue\"", COLOURS)
problem("next_colour", "c : colour", "colour", "Green after red, blue after green, red after blue.", lambda c: COLOURS[(COLOURS.index(c) + 1) % 3],
        "match c with\n  | Red -> Green\n  | Green -> Blue\n  | Blue -> Red", COLOURS, ["c"])
problem("colour_number", "c : colour", "int", "0 for red, 1 for green, 2 for blue.", COLOURS.index, "match c with\n  | Red -> 0\n  | Green -> 1\n  | Blue -> 2", COLOURS)
problem("is_warm", "c : colour", "bool", "Whether a colour is red.", lambda c: c == "Red", "match c with\n  | Red -> true\n  | _ -> false", COLOURS)
problem("count_red", "l : colour list", "int", "How many of the colours are red.", lambda l: l.count("Red"),
        "match l with\n  | [] -> 0\n  | Red :: r -> 1 + count_red r\n  | _ :: r -> count_red r", [[], ["Red", "Blue"], ["Green"], ["Red", "Red", "Green"]])
problem("all_same", "l : colour list", "bool", "Whether all colours are the same.", lambda l: len(set(l)) < 2,
        "match l with\n  | x :: (y :: _ as r) -> x = y && all_same r\n  | _ -> true", [[], ["Red", "Blue"], ["Green"], ["Red", "Red", "Green"], ["Blue", "Blue"]])
SHAPE = "type shape = Square of int | Box of int * int"
family("shapes", 2, SHAPE)
SHAPES = ["(Square 3)", "(Box (2, 5))", "(Square 1)", "(Box (4, 4))"]
SIDES = {"(Square 3)": (3, 3), "(Box (2, 5))": (2, 5), "(Square 1)": (1, 1), "(Box (4, 4))": (4, 4)}
problem("area", "s : shape", "int", "The area of a shape.", lambda s: math.prod(SIDES[s]), "match s with\n  | Square a -> a * a\n  | Box (a, b) -> a * b", SHAPES)
problem("around", "s : shape", "int", "The length around a shape.", lambda s: 2 * sum(SIDES[s]), "match s with\n  | Square a -> 4 * a\n  | Box (a, b) -> 2 * (a + b)", SHAPES)
problem("longest_side", "s : shape", "int", "The longest side of a shape.", lambda s: max(SIDES[s]), "match s with\n  | Square a -> a\n  | Box (a, b) -> max a b", SHAPES)
problem("is_square_shape", "s : shape", "bool", "Whether a shape's sides are equal.", lambda s: SIDES[s][0] == SIDES[s][1],
        "match s with\n  | Square _ -> true\n  | Box (a, b) -> a = b", SHAPES)
problem("turn", "s : shape", "shape", "A box with its sides swapped; a square as it is.", lambda s: s if "S" in s else f"(Box ({SIDES[s][1]}, {SIDES[s][0]}))",
        "match s with\n  | Square a -> Square a\n  | Box (a, b) -> Box (b, a)", SHAPES, ["s"])
problem("total_area", "l : shape list", "int", "The areas of shapes together.", lambda l: sum(math.prod(SIDES[s]) for s in l),
        "match l with\n  | [] -> 0\n  | Square a :: r -> a * a + total_area r\n  | Box (a, b) :: r -> a * b + total_area r", [[], SHAPES[:2], SHAPES, SHAPES[2:]])
EXPR = "type expr = Num of int | Add of expr * expr | Mul of expr * expr"
family("expressions", 3, EXPR)
EXPRS = {"(Num 5)": (5, 1, 0), "(Add (Num 2, Num 3))": (5, 2, 1), "(Mul (Num 4, Add (Num 1, Num 2)))": (12, 3, 2), "(Add (Mul (Num 2, Num 2), Mul (Num 3, Num 0)))": (4, 4, 3)}
problem("eval", "e : expr", "int", "The value of an expression.", lambda e: EXPRS[e][0],
        "match e with\n  | Num n -> n\n  | Add (a, b) -> eval a + eval b\n  | Mul (a, b) -> eval a * eval b", list(EXPRS),
        ["match e with Num n -> n | Add (a, b) | Mul (a, b) -> eval a + eval b"])
problem("count_nums", "e : expr", "int", "How many numbers are in an expression.", lambda e: EXPRS[e][1],
        "match e with\n  | Num _ -> 1\n  | Add (a, b) | Mul (a, b) -> count_nums a + count_nums b", list(EXPRS))
problem("operations", "e : expr", "int", "How many additions and multiplications are in an expression.", lambda e: EXPRS[e][2],
        "match e with\n  | Num _ -> 0\n  | Add (a, b) | Mul (a, b) -> 1 + operations a + operations b", list(EXPRS))
problem("show_expr", "e : expr", "string", "An expression in text, with brackets around each operation.",
        lambda e: {"(Num 5)": "5", "(Add (Num 2, Num 3))": "(2+3)", "(Mul (Num 4, Add (Num 1, Num 2)))": "(4*(1+2))"}.get(e, "((2*2)+(3*0))"),
        "match e with\n  | Num n -> string_of_int n\n  | Add (a, b) -> \"(\" ^ show_expr a ^ \"+\" ^ show_expr b ^ \")\"\n  | Mul (a, b) -> \"(\" ^ show_expr a ^ \"*\" ^ show_expr b ^ \")\"",
        list(EXPRS))
problem("double_nums", "e : expr", "expr", "An expression with every number doubled.",
        lambda e: "".join(str(2 * int(c)) if c.isdigit() else c for c in e),
        "match e with\n  | Num n -> Num (2 * n)\n  | Add (a, b) -> Add (double_nums a, double_nums b)\n  | Mul (a, b) -> Mul (double_nums a, double_nums b)",
        list(EXPRS), ["e"])

family("arrays", 2)
ARRAYS = [[], [3, 1], [5, 5, 2], [-1, 0, 4, 9]]
problem("array_sum", "a : int array", "int", "The sum of an array.", sum, "Array.fold_left ( + ) 0 a", ARRAYS)
problem("array_count", "k : int, a : int array", "int", "How often k is in an array.", lambda k, a: a.count(k),
        "Array.fold_left (fun n x -> if x = k then n + 1 else n) 0 a", [(5, ARRAYS[0]), (5, ARRAYS[2]), (3, ARRAYS[1]), (0, ARRAYS[3])])
problem("array_squares", "a : int array", "int array", "Each element of an array squared.", lambda a: [x * x for x in a], "Array.map (fun x -> x * x) a", ARRAYS, ["a", "[||]"])
problem("array_reverse", "a : int array", "int array", "An array from its last to its first element.", lambda a: a[::-1],
        "let n = Array.length a in\n  Array.init n (fun i -> a.(n - 1 - i))", ARRAYS, ["a", "[||]"])
problem("array_max", "a : int array", "int", "The largest element, but at least 0.", lambda a: max([0, *a]), "Array.fold_left max 0 a", ARRAYS)
problem("array_list", "a : int array", "int list", "The elements of an array as a list.", list, "Array.to_list a", ARRAYS)
problem("array_ends", "a : int array", "int", "The first plus the last element; 0 of an empty array.", lambda a: a[0] + a[-1] if a else 0,
        "let n = Array.length a in\n  if n = 0 then 0 else a.(0) + a.(n - 1)", ARRAYS, ["Array.fold_left ( + ) 0 a"])


def main():
    seen = {}
    for row in PROBLEMS:
        place = seen.get(row["family"], 0)
        seen[row["family"]] = place + 1
        # Every fifth of a family is for testing.
        print(json.dumps({"split": "test" if place % 5 == 3 else "train", **row}))


if __name__ == "__main__":
    main()
