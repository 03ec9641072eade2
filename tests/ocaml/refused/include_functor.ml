module F (X : sig val unsafe_get : int array -> int -> int end) = struct include X end include F (Array) let total (l : int list) : int = unsafe_get [|1|] 100000
