let rec total = let c = ref 0 in incr c; let start = !c in fun l -> match l with [] -> start - 1 | x :: rest -> x + total rest
