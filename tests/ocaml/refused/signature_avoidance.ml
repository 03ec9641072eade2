module M = struct
  open (struct type t end)
  type x = t
  type y = t
  module F (Y : sig type t = T of x end) = Y
  module X = struct type t = T of y end
  type z = F(X).t
end
module type S = module type of M with type x := int with type y := string
module N = struct
  module F (Y: sig type t = T of int end) = Y
  module X = struct type t = T of string end
  type z = X.t
end
module N' = (N : S)
let conv (v : N'.z) : int = match v with T n -> n
let total (_ : int list) : int = conv (N'.X.T "hello")
