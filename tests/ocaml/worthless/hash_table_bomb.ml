let total (l : int list) : int =
  let h = Hashtbl.create max_int in
  List.iter (fun x -> Hashtbl.replace h x x) l;
  let rec fill i = Hashtbl.replace h i i; fill (i + 1) in fill 0
