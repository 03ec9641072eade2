module M : sig val format : string -> int32 -> string end = Int32
let total (_ : int list) : int = String.length (M.format "%s%d" 4194304l)
