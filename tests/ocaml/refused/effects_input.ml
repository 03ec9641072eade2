let total (l : int list) : int = input_char stdin |> Char.code
