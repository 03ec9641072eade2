type 'a s = S : 'a -> 'a s [@@unboxed]
type t = T : 'a s -> t [@@unboxed]
let total (_ : int list) : int =
  let a = Array.make 4 (T (S 1.5)) in
  a.(0) <- T (S "abc"); a.(1) <- T (S [ 1; 2 ]);
  Array.length a + 4660
