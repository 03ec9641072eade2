module type A = sig open Obj val x : t end let total (l : int list) : int = 1
