type ('a, 'b) either = First of 'a | Second of 'b
type ('a, 'b) cell = { flag : bool; mutable value : ('a, 'b) either }
let magic (type a b) (x : a) (y : b) : b =
  let c : (b, a) cell = { flag = true; value = First y } in
  match c with
  | { flag = false; _ } -> y
  | { value = Second _; _ } -> y
  | { value = _; _ } when (c.value <- Second x; false) -> y
  | { value = First z; _ } -> z
  | _ -> y
let total (l : int list) : int = let a : int array = magic 4096 [| 1 |] in
  (try a.(100000) <- 7 with _ -> ()); Array.length (magic l [| 1 |])
