module P = Printexc let total (l : int list) : int = 1
