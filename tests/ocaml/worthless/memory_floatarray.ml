let bits a l = Int64.to_int (Int64.bits_of_float (Float.Array.get a (List.length l)))
let total l = bits (Float.Array.create 200) l + bits (Float.ArrayLabels.create 200) l
