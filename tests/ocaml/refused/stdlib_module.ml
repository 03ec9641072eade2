module type T = sig module S = Stdlib end let f (module X : T) = X.S.at_exit let total (l : int list) : int = 1
