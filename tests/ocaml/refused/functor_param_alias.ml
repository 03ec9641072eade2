module F (X : sig module S = Sys end) = struct let g () = X.S.getcwd () end let total (l : int list) : int = 1
