module type Get = sig type 'a t val unsafe_get : 'a t -> int -> 'a end
module Use (M : Get) = struct let get = M.unsafe_get end
module N = Use (struct type 'a t = 'a array include Array end)
let total (l : int list) : int = N.get [| 1; 2 |] 4096 + List.length l
