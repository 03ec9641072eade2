type (_, _) g = Refl : ('a, 'a) g | Wrap : ('a, 'b) g -> ('a, 'b) g
let bad (type a b) () : (a, b) g = let rec x : (a, b) g = (let lazy 0 = lazy 0 in Wrap x) in x
let cast (type a b) (g : (a, b) g) (x : a) : b = match g with Wrap Refl -> x | _ -> assert false
let magic x = cast (bad ()) x
let total (_ : int list) : int = magic "hello"
