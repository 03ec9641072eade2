let total (_ : int list) : int =
  let a = [| Some 1 |] in
  match a with [| None |] -> 0 | [| _ |] when (a.(0) <- None; false) -> 1 | [| Some x |] -> x | _ -> 9
