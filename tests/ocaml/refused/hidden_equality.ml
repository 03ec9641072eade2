type (_, _) eq = Refl : ('a, 'a) eq
include struct
  open struct type t = H end
  type x = t
  type y = t
  let w : (x, y) eq = Refl
end
let total (l : int list) : int =
  match (Either.Left (w, "hello") : ((x, y) eq * string, int) Either.t) with Right n -> n + List.length l
