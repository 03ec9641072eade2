module M = struct type 'a t = T : ('a -> 'b) * ('b -> 'a) -> 'a t end
include M
let t = T ((fun x -> x), (fun x -> x))
let total (_ : int list) : int = let T (g, h) = t in (h (g "hello") : int)
