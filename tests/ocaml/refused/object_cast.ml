class virtual c = object method virtual m : int end let total (l : int list) : int = 1
