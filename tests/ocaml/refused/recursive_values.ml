module rec M : sig val f : int -> int end = struct let f x = if x = 0 then 0 else M.f (x - 1) end let total (l : int list) : int = M.f 3
