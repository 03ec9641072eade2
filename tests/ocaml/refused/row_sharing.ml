let rec y : 'a. 'a -> [> `A of 'a ] = fun x -> `A x
and pair () = (y 1, y "hello")
let total (_ : int list) : int = match snd (pair ()) with `A (n : int) -> n | _ -> 2
