module F (X : module type of Array) = struct let g a = X.unsafe_get a 100000 end module M = F (Array) let total (l : int list) : int = M.g [|1|]
