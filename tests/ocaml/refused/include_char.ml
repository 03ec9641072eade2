include Char let total (l : int list) : int = match unsafe_chr 70000 with 'a' -> 1 | _ -> 2
