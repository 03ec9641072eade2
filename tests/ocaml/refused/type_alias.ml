module type T = sig module S = Unix end let total (l : int list) : int = 1
