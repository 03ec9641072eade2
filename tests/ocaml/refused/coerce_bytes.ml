module M : sig val unsafe_of_string : string -> bytes end = Bytes let total (l : int list) : int = Bytes.length (M.unsafe_of_string "x")
