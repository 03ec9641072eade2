let total (l : int list) : int = Gc.finalise (fun _ -> ()) l; 1
