module type T = sig type t val mk : float -> t end
module F (X : T) = struct type t = { x : X.t } [@@unboxed] let mk s = { x = X.mk s } end
module F10 (X : T) = F(F(F(F(F(F(F(F(F(F(X))))))))))
module F100 (X : T) = F10(F10(F10(F10(F10(F10(F10(F10(F10(F10(X))))))))))
module B = struct type t = float let mk x = x end
module M = F(F100(B))
let a = Array.make 10 (M.mk (Int64.float_of_bits 15L))
let total l = Hashtbl.hash a.(List.length l)
