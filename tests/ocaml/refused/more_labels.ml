open StdLabels.String let total (l : int list) : int = Char.code (unsafe_get "a" 9999)
