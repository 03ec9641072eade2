let ( let* ) = Obj.magic let total (l : int list) : int = let* x = l in x
