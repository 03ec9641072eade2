module type S = sig module O = Stdlib.Obj val x : int end
module type T = S with module O := Stdlib.Obj
let total (_ : int list) : int = let module M = (val (module struct let x = 31337 end : T)) in M.x
