type ('a, 'b) sum = Left of 'a | Right of 'b
type ('a, 'b) v = { fa : bool; mutable fb : ('b, 'a) sum }
let magic (type a b) (x : a) (y : b) : b =
  let r : (b, a) v = { fa = true; fb = Right y } in
  match r with
  | { fa = false; fb = _ } -> y
  | { fa = _; fb = Left _ } -> y
  | { fa = _; fb = _ } when (r.fb <- Left x; false) -> y
  | { fa = true; fb = Right y } -> y
let total (l : int list) : int = Array.length (magic l [| 1 |])
