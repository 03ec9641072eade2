let b = Buffer.create 20_000_000
let () = for _ = 1 to 9 do Printf.bprintf b "%.3000000000f" 1. done
let total (_ : int list) = Buffer.add_char b 'x'; Buffer.length b
