let r = ref ""
let () =
  let ppf = Format.make_formatter (fun s _ _ -> r := s) (fun () -> ()) in
  Format.fprintf ppf "%.*f@?" 3_000_000_000 1.
let total l = List.length l * Char.code !r.[100_000]
