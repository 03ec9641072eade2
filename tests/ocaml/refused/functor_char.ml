module F (X : sig val unsafe_chr : int -> char end) = struct let c = X.unsafe_chr 5000 end module M = F (Char) let total (l : int list) : int = Char.code M.c
