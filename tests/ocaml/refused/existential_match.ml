type 'a t = T : ('a -> 'b) * ('b -> 'a) -> 'a t
let t = T ((fun x -> x), (fun x -> x))
let wrong = let T (g, h) = t in h (g 1)
let total (_ : int list) : int = String.length wrong
