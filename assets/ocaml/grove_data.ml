(* Values of first-order types as bytes, which a process can read without trust in the process that wrote them: what is
   read has the type that it should have, or is refused. *)

(* {1 Types} *)

type shape = { mutable form : form }

and form =
  | Unknown
  | Int
  | Char
  | Float
  | String
  | Int32
  | Int64
  | Nativeint
  (* The number of constant constructors, and the fields of the others by their tags; tuples and records have one. *)
  | Variant of int * shape array array
  | Floats of int

exception Unfit

let most_shapes = 300
let most_steps = 3_000

(* The shape of a type that is made of data alone that cannot change: a copy of other data could be told from it.
   @raise Unfit for other types *)
let shape env ty =
  let found = ref [] and number = ref 0 in
  let node form =
    incr number;
    if !number > most_shapes then raise Unfit;
    { form }
  in
  let plain = Predef.[ (path_int, Int); (path_char, Char); (path_float, Float); (path_string, String); (path_int32, Int32);
    (path_int64, Int64); (path_nativeint, Nativeint) ] in
  (* Each type has one node, so that recursive ones come to an end. *)
  let known path shapes form =
    let same (other, others, _) =
      Option.equal Path.same other path && List.compare_lengths others shapes = 0 && List.for_all2 ( == ) others shapes
    in
    match List.find_opt same !found with
    | Some (_, _, known) -> known
    | None ->
        let fresh = node Unknown in
        found := (path, shapes, fresh) :: !found;
        fresh.form <- form ();
        fresh
  in
  let steps = ref 0 in
  let rec go ty =
    (* Types that contain larger and larger ones have no end. *)
    incr steps;
    if !steps > most_steps then raise Unfit;
    let ty = Ctype.expand_head env ty in
    match ty.Types.desc with
    | Ttuple types ->
        let shapes = List.map go types in
        known None shapes (fun () -> Variant (0, [| Array.of_list shapes |]))
    | Tpoly (ty, []) -> go ty
    | Tconstr (path, arguments, _) -> (
        match List.find_opt (fun (other, _) -> Path.same other path) plain with
        | Some (_, form) -> known (Some path) [] (fun () -> form)
        | None ->
            let shapes = List.map go arguments in
            known (Some path) shapes (fun () -> declared path arguments))
    | _ -> raise Unfit
  and declared path arguments =
    let declaration = Env.find_type path env in
    if declaration.type_private = Private then raise Unfit;
    let field ty = go (Ctype.apply env declaration.type_params ty arguments) in
    let label (label : Types.label_declaration) =
      if label.ld_mutable = Mutable then raise Unfit;
      field label.ld_type
    in
    match declaration.type_kind with
    | Type_record (labels, Record_regular) -> Variant (0, [| Array.of_list (List.map label labels) |])
    | Type_record (labels, Record_float) -> Floats (List.length (List.map label labels))
    | Type_variant (constructors, Variant_regular) ->
        let fields (constructor : Types.constructor_declaration) =
          if constructor.cd_res <> None then raise Unfit;
          match constructor.cd_args with
          | Cstr_tuple types -> List.map field types
          | Cstr_record labels -> List.map label labels
        in
        let all = List.map (fun constructor -> Array.of_list (fields constructor)) constructors in
        let constants, blocks = List.partition (fun fields -> Array.length fields = 0) all in
        Variant (List.length constants, Array.of_list blocks)
    (* Arrays and sequences of bytes among them. *)
    | _ -> raise Unfit
  in
  match go ty with shape -> shape | exception _ -> raise Unfit

(* {1 Bytes} *)

(* Longer values are refused. *)
let most_bytes = 1 lsl 24

let put_int bytes i = Buffer.add_int64_le bytes (Int64.of_int i)

let put_string bytes text =
  if Buffer.length bytes + String.length text > most_bytes then raise Unfit;
  put_int bytes (String.length text);
  Buffer.add_string bytes text

let rec put bytes shape value =
  if Buffer.length bytes > most_bytes then raise Unfit;
  match shape.form with
  | Unknown -> raise Unfit
  | Int | Char -> put_int bytes (Obj.obj value)
  | Float -> Buffer.add_int64_le bytes (Int64.bits_of_float (Obj.obj value))
  | String -> put_string bytes (Obj.obj value)
  | Int32 -> Buffer.add_int64_le bytes (Int64.of_int32 (Obj.obj value))
  | Int64 -> Buffer.add_int64_le bytes (Obj.obj value)
  | Nativeint -> Buffer.add_int64_le bytes (Int64.of_nativeint (Obj.obj value))
  | Floats _ -> Array.iter (fun x -> Buffer.add_int64_le bytes (Int64.bits_of_float x)) (Obj.obj value)
  | Variant (constants, blocks) ->
      if Obj.is_int value then put_int bytes (Obj.obj value)
      else begin
        put_int bytes (constants + Obj.tag value);
        let fields = blocks.(Obj.tag value) in
        let last = Array.length fields - 1 in
        for i = 0 to last - 1 do
          put bytes fields.(i) (Obj.field value i)
        done;
        put bytes fields.(last) (Obj.field value last)
      end

type source = { text : string; mutable at : int }

let get_int64 source =
  let i = String.get_int64_le source.text source.at in
  source.at <- source.at + 8;
  i

(* An integer from 0 to [most]. *)
let get_below most source =
  let i = get_int64 source in
  if Int64.compare i 0L < 0 || Int64.compare i (Int64.of_int most) > 0 then raise Unfit;
  Int64.to_int i

let get_length source = get_below (String.length source.text - source.at) source

let get_string source =
  let length = get_length source in
  let text = String.sub source.text source.at length in
  source.at <- source.at + length;
  text

(* Reads a value into a field of a block. *)
let rec get_into block i shape source =
  let set value = Obj.set_field block i (Obj.repr value) in
  let get_float _ = Int64.float_of_bits (get_int64 source) in
  match shape.form with
  | Unknown -> raise Unfit
  | Int -> set (Int64.to_int (get_int64 source))
  | Char -> set (get_below 255 source)
  | Float -> set (get_float ())
  | String -> set (get_string source)
  | Int32 -> set (Int64.to_int32 (get_int64 source))
  | Int64 -> set (get_int64 source)
  | Nativeint -> set (Int64.to_nativeint (get_int64 source))
  | Floats number -> set (Array.init number get_float)
  | Variant (constants, blocks) ->
      let code = get_below (constants + Array.length blocks - 1) source in
      if code < constants then set code
      else begin
        let fields = blocks.(code - constants) in
        let fresh = Obj.new_block (code - constants) (Array.length fields) in
        let last = Array.length fields - 1 in
        for i = 0 to last do
          Obj.set_field fresh i (Obj.repr 0)
        done;
        set fresh;
        for i = 0 to last - 1 do
          get_into fresh i fields.(i) source
        done;
        get_into fresh last fields.(last) source
      end

let get shape source =
  let block = Obj.repr (ref 0) in
  get_into block 0 shape source;
  Obj.field block 0

(* {1 Calls} *)

(* A call of a function by its number, with an argument if it takes one, after the numbers that are called no more. *)
let put_call forgotten number argument =
  let bytes = Buffer.create 256 in
  put_int bytes (List.length forgotten);
  List.iter (put_int bytes) forgotten;
  put_int bytes number;
  Option.iter (fun (shape, value) -> put bytes shape value) argument;
  Buffer.contents bytes

(* The numbers of a call; its argument is still to be read. *)
let get_call source =
  let get_int _ = Int64.to_int (get_int64 source) in
  let forgotten = List.init (get_length source) get_int in
  (forgotten, get_int ())

exception Other

let plain =
  [| Not_found; Exit; Division_by_zero; End_of_file; Stack_overflow; Out_of_memory;
     Stack.Empty; Queue.Empty; Lazy.Undefined; Other |]

let put_outcome own shape outcome =
  let bytes = Buffer.create 256 in
  (match outcome with
  | Ok value -> put_int bytes 0; put bytes shape value
  | Error (Failure text) -> put_int bytes 1; put_string bytes text
  | Error (Invalid_argument text) -> put_int bytes 2; put_string bytes text
  | Error (Sys_error text) -> put_int bytes 3; put_string bytes text
  | Error (Match_failure _) -> put_int bytes 4
  | Error (Assert_failure _) -> put_int bytes 5
  | Error exn ->
      let all = Array.append plain own in
      let found = ref (Array.length plain - 1) in
      Array.iteri (fun i known -> if known == exn then found := i) all;
      put_int bytes (6 + !found));
  Buffer.contents bytes

let get_outcome own shape text =
  let source = { text; at = 0 } in
  let all = Array.append plain own in
  let outcome =
    match get_below (5 + Array.length all) source with
    | 0 -> Ok (get shape source)
    | 1 -> Error (Failure (get_string source))
    | 2 -> Error (Invalid_argument (get_string source))
    | 3 -> Error (Sys_error (get_string source))
    (* The place in the code is not told. *)
    | 4 -> Error (Match_failure ("", 0, 0))
    | 5 -> Error (Assert_failure ("", 0, 0))
    | code -> Error all.(code - 6)
  in
  if source.at <> String.length text then raise Unfit;
  outcome

(* {1 Pipes} *)

let send pipe text =
  let bytes = Buffer.create (String.length text + 8) in
  put_int bytes (String.length text);
  Buffer.add_string bytes text;
  let whole = Buffer.contents bytes in
  if Unix.write_substring pipe whole 0 (String.length whole) < String.length whole then raise Unfit

let receive pipe =
  let exactly length =
    let bytes = Bytes.create length in
    let rec fill at =
      if at < length then
        match Unix.read pipe bytes at (length - at) with
        | 0 -> raise End_of_file
        | n -> fill (at + n)
        | exception Unix.Unix_error (EINTR, _, _) -> fill at
    in
    fill 0;
    Bytes.unsafe_to_string bytes
  in
  exactly (get_below (2 * most_bytes) { text = exactly 8; at = 0 })
