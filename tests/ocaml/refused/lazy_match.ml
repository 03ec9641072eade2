type r = { mutable a : int option; l : unit Lazy.t }
let total (_ : int list) : int =
  let cell = ref (fun () -> ()) in
  let r = { a = Some 1; l = lazy (!cell ()) } in
  cell := (fun () -> r.a <- None);
  match r with { a = None; _ } -> 0 | { l = lazy (); a = Some x } -> x
