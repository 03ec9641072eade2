let total (l : int list) : int = let module R (X : sig module G = Gc end) = struct let () = X.G.compact () end in 1
