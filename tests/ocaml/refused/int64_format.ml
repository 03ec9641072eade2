let total (_ : int list) : int = String.length (Int64.format "%s%d" 4194304L)
