let total (l : int list) : int = Unix.getpid ()
