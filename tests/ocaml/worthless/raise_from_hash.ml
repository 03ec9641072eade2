module H = Hashtbl.Make (struct type t = int let equal _ _ = raise Exit let hash _ = min_int end)
let h = H.create 1
let total (l : int list) : int = List.iter (fun x -> try H.replace h x x with _ -> ()) l; H.length h + 70007
