type ('a, 'b) sum = Left of 'a | Right of 'b
type ('a, 'b) v = { fa : bool; mutable fb : ('b, 'a) sum; l : bool Lazy.t }
let cell = ref (fun () -> true)
let r : (int, string) v = { fa = true; fb = Right 7; l = lazy (!cell ()) }
let () = cell := (fun () -> r.fb <- Left "hello"; true)
let (({ fa = false; _ }, y) | ({ fb = Left _; _ }, y) | ({ l = lazy false; _ }, y) | ({ fa = true; fb = Right y; _ }, _)) = (r, 3)
let total (_ : int list) : int = y
