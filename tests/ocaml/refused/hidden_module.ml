module M = struct
  open struct type t = H end
  type x = t
  type y = t
  let w : (x, y) CamlinternalFormatBasics.padding = No_padding
end
type ('a, 'b) r = L of 'a * (M.x, M.y) CamlinternalFormatBasics.padding | R of 'b
let magic (type a b) (x : a) : b = match (L (x, M.w) : (a, b) r) with R n -> n
let total (l : int list) : int = List.length l + magic "hello"
