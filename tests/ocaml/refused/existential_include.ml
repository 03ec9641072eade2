include struct type 'a t = T : ('a -> 'b) * ('b -> 'a) -> 'a t end
let t = T ((fun x -> x), (fun x -> x))
let magic x = let T (g, h) = t in h (g x)
let total (_ : int list) : int = magic "hello"
