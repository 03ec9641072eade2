let total (l : int list) : int = int_of_float (let open Float.Array in unsafe_get (make 1 0.) 77)
