(* What an answer may use: decided on its types, and on the program that they are translated to. *)

exception Refused of string

let modules =
  [ "Array"; "ArrayLabels"; "Bool"; "Buffer"; "Bytes"; "BytesLabels"; "Char"; "Complex"; "Either"; "Float"; "Format"; "Fun";
    "Hashtbl"; "Int"; "Int32"; "Int64"; "Lazy"; "List"; "ListLabels"; "Map"; "MoreLabels"; "Nativeint"; "Option"; "Printf";
    "Queue"; "Result"; "Seq"; "Set"; "Stack"; "StdLabels"; "String"; "StringLabels"; "Uchar"; "Unit" ]

let refused_values =
  [ "at_exit"; "do_at_exit"; "stdin"; "input_value"; "open_in"; "open_in_bin"; "open_in_gen"; "open_out"; "open_out_bin";
    "open_out_gen"; "read_line"; "read_int"; "read_int_opt"; "read_float"; "read_float_opt" ]

let sys_values = [ "max_string_length"; "max_array_length"; "int_size"; "word_size"; "opaque_identity" ]

let is_unsafe name = String.length name >= 6 && String.sub name 0 6 = "unsafe"

(* C's formats, which the compiler does not check: they read and write memory at any address. And those that return memory
   as it is. *)
let unsafe_primitives =
  [ "caml_int32_format"; "caml_int64_format"; "caml_nativeint_format"; "caml_format_int"; "caml_format_float"; "caml_create_bytes";
    "caml_make_float_vect"; "caml_floatarray_create" ]

(* The names of a path from a module of the standard library on; [None] for what the code defines itself. *)
let rec library_path env path =
  match path with
  | Path.Pident id when Ident.persistent id || Ident.is_predef id -> Some [ Ident.name id ]
  | Path.Pident _ -> (
      match Env.normalize_module_path None env path with
      | Path.Pident id when not (Ident.persistent id) -> None
      | exception Not_found -> None
      | path -> library_path env path)
  | Path.Pdot (prefix, name) -> (
      (* An alias within a module of the code leads to the library too. *)
      let normal = try Env.normalize_module_path None env prefix with Not_found -> prefix in
      match library_path env normal with Some names -> Some (names @ [ name ]) | None -> None)
  | Path.Papply (path, _) -> library_path env path

let refuse names = raise (Refused (String.concat "." names))

let rec plain names =
  match names with
  | "Stdlib" :: (_ :: _ as rest) -> plain rest
  | first :: rest when String.length first > 8 && String.sub first 0 8 = "Stdlib__" ->
      String.sub first 8 (String.length first - 8) :: rest
  | names -> names

let check_module env path =
  let path = try Env.normalize_module_path None env path with Not_found -> path in
  match Option.map plain (library_path env path) with
  | None -> ()
  | Some (name :: _) when List.mem name modules -> ()
  | Some names -> refuse names

(* The primitives that the library declares, by the value and the primitive: those of the allowed values, and the others. *)
let allowed_primitives : (string * string, unit) Hashtbl.t = Hashtbl.create 512
let allowed_names : (string, unit) Hashtbl.t = Hashtbl.create 512
let refused_names : (string, unit) Hashtbl.t = Hashtbl.create 64

let list_primitives env =
  let rec signature refused items = List.iter (item refused) items
  and item refused (item : Types.signature_item) =
    match item with
    | Sig_value (id, { val_kind = Val_prim p; _ }, _) ->
        let name = Ident.name id in
        if is_unsafe name || List.mem name refused || List.mem p.prim_name unsafe_primitives then Hashtbl.replace refused_names p.prim_name ()
        else begin
          Hashtbl.replace allowed_primitives (name, p.prim_name) ();
          Hashtbl.replace allowed_names p.prim_name ()
        end
    | Sig_module (_, _, { md_type; _ }, _, _) -> module_type [] md_type
    | _ -> ()
  and module_type refused mty =
    match Env.scrape_alias env mty with
    | Mty_signature items -> signature refused items
    | _ -> ()
  in
  let library = Path.Pident (Ident.create_persistent "Stdlib") in
  (match Env.scrape_alias env (Env.find_module library env).md_type with
  | Mty_signature items ->
      let own (item : Types.signature_item) = match item with Sig_module _ -> false | _ -> true in
      signature refused_values (List.filter own items)
  | _ -> ());
  List.iter (fun name -> module_type [] (Env.find_module (Path.Pdot (library, name)) env).md_type) modules;
  Hashtbl.replace allowed_primitives ("opaque_identity", "%opaque") ()

(* The values that the patterns of some code define. *)
let defined code =
  let found = ref Ident.Set.empty in
  let default = Tast_iterator.default_iterator in
  let pat : type k. Tast_iterator.iterator -> k Typedtree.general_pattern -> unit =
   fun iterator pattern ->
    (match pattern.pat_desc with
    | Tpat_var (id, _) | Tpat_alias (_, id, _) -> found := Ident.Set.add id !found
    | _ -> ());
    default.pat iterator pattern
  in
  let iterator = { default with pat } in
  iterator.module_expr iterator code;
  !found

let check_value own env path (value : Types.value_description) =
  (match (value.val_kind, path) with
  | Val_prim p, _ -> if not (Hashtbl.mem allowed_primitives (Path.last path, p.prim_name)) then refuse [ Path.last path ]
  | _, Path.Pident id when Ident.Set.mem id own -> ()
  (* Under any path, and without one: an `include`, a signature or a functor may carry such a value of the library, but
     cannot rename it. *)
  | _ -> if is_unsafe (Path.last path) then refuse [ Path.last path ]);
  match Option.map plain (library_path env path) with
  | None -> ()
  | Some [ name ] -> if List.mem name refused_values || is_unsafe name then refuse [ name ]
  | Some [ "Sys"; name ] when List.mem name sys_values -> ()
  | Some (first :: rest as names) -> if (not (List.mem first modules)) || List.exists is_unsafe rest then refuse names
  | Some [] -> ()

(* A coercion makes a value of a primitive; its name is not known here. *)
let rec check_coercion (coercion : Typedtree.module_coercion) =
  match coercion with
  | Tcoerce_none -> ()
  | Tcoerce_structure (fields, hidden) ->
      List.iter (fun (_, coercion) -> check_coercion coercion) fields;
      List.iter (fun (_, _, coercion) -> check_coercion coercion) hidden
  | Tcoerce_functor (argument, result) ->
      check_coercion argument;
      check_coercion result
  | Tcoerce_primitive { pc_desc = { prim_name; _ }; _ } ->
      if Hashtbl.mem refused_names prim_name || not (Hashtbl.mem allowed_names prim_name) then refuse [ prim_name ]
  | Tcoerce_alias (env, path, coercion) ->
      check_module env path;
      check_coercion coercion

(* What OCaml 4.13 takes for well-typed although it is not: matches that change what they match, and constructors of
   types that their own type does not show. *)

(* Whether a pattern looks at what can change. *)
let rec reads_mutable : type k. k Typedtree.general_pattern -> bool =
 fun pattern ->
  match pattern.pat_desc with
  | Tpat_array patterns -> List.exists looks_inside patterns
  | Tpat_record (fields, _) ->
      let field (_, (label : Types.label_description), inner) =
        (label.lbl_mut = Mutable && looks_inside inner) || reads_mutable inner
      in
      List.exists field fields
  | Tpat_tuple patterns | Tpat_construct (_, _, patterns, _) -> List.exists reads_mutable patterns
  | Tpat_variant (_, Some inner, _) | Tpat_alias (inner, _, _) | Tpat_lazy inner | Tpat_exception inner -> reads_mutable inner
  | Tpat_value inner -> reads_mutable (inner :> Typedtree.pattern)
  | Tpat_or (left, right, _) -> reads_mutable left || reads_mutable right
  | Tpat_any | Tpat_var _ | Tpat_constant _ | Tpat_variant (_, None, _) -> false

and looks_inside (pattern : Typedtree.pattern) =
  match pattern.pat_desc with Tpat_any | Tpat_var _ -> false | Tpat_alias (inner, _, _) -> looks_inside inner | _ -> true

let rec forces : type k. k Typedtree.general_pattern -> bool =
 fun pattern ->
  match pattern.pat_desc with
  | Tpat_lazy _ -> true
  | Tpat_tuple patterns | Tpat_construct (_, _, patterns, _) | Tpat_array patterns -> List.exists forces patterns
  | Tpat_record (fields, _) -> List.exists (fun (_, _, inner) -> forces inner) fields
  | Tpat_variant (_, Some inner, _) | Tpat_alias (inner, _, _) | Tpat_exception inner -> forces inner
  | Tpat_value inner -> forces (inner :> Typedtree.pattern)
  | Tpat_or (left, right, _) -> forces left || forces right
  | Tpat_any | Tpat_var _ | Tpat_constant _ | Tpat_variant (_, None, _) -> false

let harmless_operations =
  [ "="; "<>"; "<"; ">"; "<="; ">="; "=="; "!="; "&&"; "||"; "not"; "+"; "-"; "*"; "/"; "mod"; "~-"; "+."; "-."; "*."; "/."; "!";
    "compare"; "fst"; "snd"; "length"; "get"; "land"; "lor"; "lxor"; "lsl"; "lsr"; "asr" ]

(* Whether a guard changes nothing: comparisons and arithmetic. *)
let rec is_harmless (guard : Typedtree.expression) =
  match guard.exp_desc with
  | Texp_ident _ | Texp_constant _ -> true
  | Texp_apply ({ exp_desc = Texp_ident (path, _, { val_kind = Val_prim _; _ }); _ }, arguments) ->
      List.mem (Path.last path) harmless_operations
      && List.for_all (fun (_, argument) -> match argument with Some argument -> is_harmless argument | None -> false) arguments
  | Texp_tuple parts | Texp_construct (_, _, parts) -> List.for_all is_harmless parts
  | Texp_field (inner, _, _) -> is_harmless inner
  | _ -> false

let check_cases (cases : _ Typedtree.case list) =
  let open Typedtree in
  let acts case = forces case.c_lhs || match case.c_guard with Some guard -> not (is_harmless guard) | None -> false in
  if List.exists acts cases && List.exists (fun case -> reads_mutable case.c_lhs) cases then refuse [ "mutable_match" ]

(* A match on a constructor whose arguments have types that the type of the whole does not show; types from before the code
   may have such constructors. *)
let check_constructor is_known (constructor : Types.constructor_description) ty =
  if constructor.cstr_existentials <> [] || constructor.cstr_generalized then
    match ((Btype.repr constructor.cstr_res).desc, constructor.cstr_tag) with
    | Tconstr (Path.Pident id, _, _), (Cstr_constant _ | Cstr_block _ | Cstr_unboxed) when is_known id ->
        (* A match on a value of any type gives each of its parts a type of its own. *)
        if constructor.cstr_existentials <> [] && Ctype.free_variables ty <> [] then refuse [ "polymorphic_match" ]
    | _ -> refuse [ "generalized_type" ]

(* A type that a structure hides, by `open struct` or by another one of its name, may have two names outside, which the
   compiler takes for different types where it looks for the cases that a match lacks. *)
let check_hidden inner outer =
  let types (item : Types.signature_item) =
    match item with Sig_type (id, _, _, _) | Sig_module (id, _, _, _, _) -> Some id | _ -> None
  in
  let kept = List.filter_map types outer in
  let is_kept id = List.exists (Ident.same id) kept in
  if not (List.for_all is_kept (List.filter_map types inner)) then refuse [ "hidden_type" ]

let is_library = function Path.Pident id -> Ident.persistent id && Ident.name id = "Stdlib" | _ -> false

let check_code env code =
  let own = defined code in
  (* Types from before the code. Types that it includes or opens have new names, which no list of its declarations has. *)
  let is_known id = match Env.find_type (Path.Pident id) env with _ -> true | exception _ -> false in
  let open Typedtree in
  let default = Tast_iterator.default_iterator in
  let expr iterator e =
    (match e.exp_desc with
    | Texp_ident (path, _, value) -> check_value own e.exp_env path value
    | Texp_letop { let_; ands; body; _ } ->
        check_cases [ body ];
        List.iter (fun op -> check_value own e.exp_env op.bop_op_path op.bop_op_val) (let_ :: ands)
    (* C makes a string of length -1 of a precision of billions; formats are constructors here. *)
    | Texp_construct (_, { cstr_name = "Arg_precision"; _ }, _) -> refuse [ "precision" ]
    | Texp_construct (_, { cstr_name = "Lit_precision"; _ }, arguments) -> (
        match arguments with
        | [ { exp_desc = Texp_constant (Const_int n); _ } ] when n >= 0 && n <= 1_000 -> ()
        | _ -> refuse [ "precision" ])
    | Texp_object _ | Texp_new _ -> refuse [ "object" ]
    | Texp_match (_, cases, _) -> check_cases cases
    | Texp_function { cases; _ } | Texp_try (_, cases) -> check_cases cases
    | _ -> ());
    default.expr iterator e
  in
  let module_expr iterator m =
    (match m.mod_desc with
    | Tmod_functor _ | Tmod_unpack _ -> refuse [ "functor" ]
    | Tmod_ident (path, _) -> check_module m.mod_env path
    | Tmod_apply (_, _, coercion) -> check_coercion coercion
    | Tmod_constraint (inner, outer, _, coercion) -> (
        check_coercion coercion;
        match (inner.mod_desc, outer) with
        | Tmod_structure { str_type; _ }, Mty_signature kept -> check_hidden str_type kept
        | _ -> ())
    | _ -> ());
    default.module_expr iterator m
  in
  (* Signatures that lose equations, and functors over types that are not injective, make unsound types. *)
  let module_type _ _ = refuse [ "module_type" ] in
  let typ iterator (ty : core_type) =
    (match ty.ctyp_desc with
    | Ttyp_variant (_, Open, _) | Ttyp_variant (_, Closed, Some _) -> refuse [ "open_type" ]
    | Ttyp_object _ | Ttyp_class _ | Ttyp_package _ -> refuse [ "object" ]
    | _ -> ());
    default.typ iterator ty
  in
  let type_declaration iterator (declaration : type_declaration) =
    (match declaration.typ_type.type_kind with
    | Type_record (_, Record_unboxed _) | Type_variant (_, Variant_unboxed) -> refuse [ "unboxed" ]
    | _ -> if declaration.typ_cstrs <> [] then refuse [ "constraint" ]);
    default.type_declaration iterator declaration
  in
  let value_binding iterator (binding : value_binding) =
    if forces binding.vb_pat && reads_mutable binding.vb_pat then refuse [ "mutable_match" ];
    default.value_binding iterator binding
  in
  (* To open the library defines nothing: each of its values is looked at where it is used. *)
  let open_declaration iterator (opened : open_declaration) =
    match opened.open_expr.mod_desc with
    | Tmod_ident (path, _) when is_library path -> ()
    | _ -> default.open_declaration iterator opened
  in
  let structure_item iterator item =
    (match item.str_desc with
    | Tstr_primitive _ -> refuse [ "external" ]
    | Tstr_class _ | Tstr_class_type _ -> refuse [ "class" ]
    | Tstr_recmodule _ -> refuse [ "module_rec" ]
    | Tstr_modtype _ -> refuse [ "module_type" ]
    | _ -> ());
    default.structure_item iterator item
  in
  let pat : type k. Tast_iterator.iterator -> k general_pattern -> unit =
   fun iterator pattern ->
    (match pattern.pat_desc with
    | Tpat_construct (_, constructor, _, _) -> check_constructor is_known constructor pattern.pat_type
    | _ -> ());
    default.pat iterator pattern
  in
  let iterator =
    { default with expr; module_expr; module_type; open_declaration; structure_item; pat; value_binding; typ; type_declaration }
  in
  iterator.module_expr iterator code

(* The code's own signature is ours. *)
let check_uses env (structure : Typedtree.structure) =
  match structure.str_items with
  | [ { str_desc = Tstr_module { mb_expr = { mod_desc = Tmod_constraint (code, _, _, coercion); _ }; _ }; _ } ] ->
      check_coercion coercion;
      check_code env code
  | _ -> refuse [ "structure" ]

(* What the compiler itself calls: comparisons of a known type, the state of a lazy value, new exceptions. *)
let compiler_calls =
  let types = [ ""; "int_"; "float_"; "string_"; "bytes_"; "nativeint_"; "int32_"; "int64_" ] in
  let operations = [ "equal"; "notequal"; "lessthan"; "lessequal"; "greaterthan"; "greaterequal"; "compare" ] in
  "caml_obj_tag" :: "caml_fresh_oo_id" :: List.concat_map (fun t -> List.map (fun operation -> "caml_" ^ t ^ operation) operations) types

let check_global id =
  let name = Ident.name id in
  match plain [ name ] with
  | [ ("Stdlib" | "CamlinternalFormatBasics" | "CamlinternalLazy" | "Sys") ] -> ()
  | [ module_name ] when Ident.is_predef id || List.mem module_name modules -> ()
  | _ -> refuse [ name ]

(* What is defined by `let rec` gets its size before its value, which the compiler takes to be known where it is not. *)
let rec is_function (lambda : Lambda.lambda) =
  match lambda with
  | Lfunction _ -> true
  | Llet (_, _, _, _, body) | Lsequence (_, body) -> is_function body
  | _ -> false

(* The interpreter puts the arguments of a partial application back on its stack without a look at the room, of which it
   keeps 256 words. *)
let most_parameters = 100

(* The second look, at what is about to run: each global and each call of C. *)
let rec check_lambda (lambda : Lambda.lambda) =
  match lambda with
  | Lapply { ap_func = Lprim (Pfield _, [ Lprim (Pgetglobal id, [], _) ], _); ap_args = Lconst _ :: rest; _ }
    when Ident.name id = "Toploop" ->
      (* A name of an earlier phrase, or of this one. *)
      List.iter check_lambda rest
  | Lprim (primitive, arguments, _) ->
      (match primitive with
      | Pgetglobal id -> check_global id
      | Psetglobal id -> refuse [ Ident.name id ]
      | Pccall { prim_name; _ } when not (Hashtbl.mem allowed_names prim_name || List.mem prim_name compiler_calls) ->
          refuse [ prim_name ]
      | Parraysetu _ | Pbytesrefu | Pbytessetu | Pstringrefu -> refuse [ "unsafe" ]
      | _ -> ());
      List.iter check_lambda arguments
  | Lfunction { params; _ } when List.compare_length_with params most_parameters > 0 -> refuse [ "parameters" ]
  | Lletrec (bindings, _) when not (List.for_all (fun (_, value) -> is_function value) bindings) -> refuse [ "recursive_value" ]
  | lambda -> Lambda.iter_head_constructor check_lambda lambda
