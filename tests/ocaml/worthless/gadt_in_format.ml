open CamlinternalFormatBasics
let f : (int -> 'a, unit, string, string, string, 'a) format6 =
  Format (Int (Int_d, Lit_padding (Zeros, 100_000_000), No_precision, End_of_format), "%d")
let total (_ : int list) : int = String.length (Printf.sprintf (Obj.magic f) 3)
