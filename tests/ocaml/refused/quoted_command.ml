let quotes = {|(*|} (* "*)" {|*)|} *)
let total (l : int list) : int = Sys.command {q|true|}|q}
