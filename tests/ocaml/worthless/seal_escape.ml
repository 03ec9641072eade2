let total (_ : int list) : int = 1 end : sig val total : int list -> int end) module Other = struct let x = Obj.magic 3
