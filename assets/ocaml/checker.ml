(* A server that types, compiles and runs pieces of OCaml, each in a process of its own.

   It reads requests from its standard input and answers each with a line:

     request   ID CPU WALL LENGTH... <newline> and so many bytes each: prelude, signature, code, calls
     answer    ID <space> types <space> compile <space> a result for each call <space> and a full stop

   [types] is a number of errors, or [syntax]; [compile] is [ok], [no] or the name of what may not be used; a result is the
   digest of a call's value, or [-]; the full stop says that the process ended by itself. What is missing from the end of an answer did not come to pass: the process ended,
   or was ended, before. Each value is digested where it is computed, and only who asks knows which digest is the right
   one: nothing that the code prints, calls or breaks earns it anything. *)

(* {1 Types} *)

let parse text = Parse.implementation (Lexing.from_string text)

let type_structure env structure =
  Typecore.reset_delayed_checks ();
  Env.reset_required_globals ();
  let typed, _, _, env' = Typemod.type_toplevel_phrase env structure in
  Typecore.force_delayed_checks ();
  (typed, env')

(* Where a type error is, if the exception is one. *)
let error_location exn =
  match Location.error_of_exn exn with
  | Some (`Ok report) -> Some report.Location.main.loc
  | _ -> None

let inside (inner : Location.t) (outer : Location.t) =
  outer.loc_start.pos_cnum <= inner.loc_start.pos_cnum && inner.loc_end.pos_cnum <= outer.loc_end.pos_cnum

(* An expression of any type. *)
let hole =
  Ast_helper.Exp.assert_ (Ast_helper.Exp.construct (Location.mknoloc (Longident.Lident "false")) None)

(* The structure with a hole in place of the smallest expression that holds a place, or without the item that does. *)
let mended structure place =
  let smallest = ref None in
  let expr (iterator : Ast_iterator.iterator) (e : Parsetree.expression) =
    if inside place e.pexp_loc then smallest := Some e;
    Ast_iterator.default_iterator.expr iterator e
  in
  let iterator = { Ast_iterator.default_iterator with expr } in
  iterator.structure iterator structure;
  match !smallest with
  | Some target when target.pexp_desc <> hole.pexp_desc ->
      let expr mapper e = if e == target then { hole with pexp_loc = e.Parsetree.pexp_loc } else Ast_mapper.default_mapper.expr mapper e in
      let mapper = { Ast_mapper.default_mapper with expr } in
      mapper.structure mapper structure
  | _ -> List.filter (fun (item : Parsetree.structure_item) -> not (inside place item.pstr_loc)) structure

(* The errors of a structure, at most [limit]: each is counted, mended, and the rest looked at again. *)
let rec count_errors env structure limit =
  if limit = 0 then 0
  else
    match type_structure env structure with
    | _ -> 0
    | exception exn -> (
        match error_location exn with
        | None -> 1
        | Some place ->
            let next = mended structure place in
            if next = structure then 1 else 1 + count_errors env next (limit - 1))

(* {1 What code may use} *)

exception Refused of string

let modules =
  [ "Array"; "ArrayLabels"; "Bool"; "Buffer"; "Bytes"; "BytesLabels"; "Char"; "Complex"; "Either"; "Float"; "Format"; "Fun";
    "Hashtbl"; "Int"; "Int32"; "Int64"; "Lazy"; "List"; "ListLabels"; "Map"; "MoreLabels"; "Nativeint"; "Option"; "Printf";
    "Queue"; "Result"; "Seq"; "Set"; "Stack"; "StdLabels"; "String"; "StringLabels"; "Uchar" ]

let refused_values =
  [ "at_exit"; "do_at_exit"; "stdin"; "input_value"; "open_in"; "open_in_bin"; "open_in_gen"; "open_out"; "open_out_bin";
    "open_out_gen"; "read_line"; "read_int"; "read_int_opt"; "read_float"; "read_float_opt" ]

let sys_values = [ "max_string_length"; "max_array_length"; "int_size"; "word_size"; "opaque_identity" ]

let is_unsafe name = String.length name >= 6 && String.sub name 0 6 = "unsafe"

(* The names of a path from a module of the standard library on; [None] for what the code defines itself. *)
let rec library_path env path =
  match path with
  | Path.Pident id when Ident.persistent id || Ident.is_predef id -> Some [ Ident.name id ]
  | Path.Pident _ -> (
      match Env.normalize_module_path None env path with
      | Path.Pident id when not (Ident.persistent id) -> None
      | exception _ -> None
      | path -> library_path env path)
  | Path.Pdot (prefix, name) -> (
      (* An alias within a module of the code leads to the library too. *)
      let normal = try Env.normalize_module_path None env prefix with _ -> prefix in
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
  let path = try Env.normalize_module_path None env path with _ -> path in
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
        if is_unsafe name || List.mem name refused then Hashtbl.replace refused_names p.prim_name ()
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

let check_value env path (value : Types.value_description) =
  (match value.val_kind with
  | Val_prim p -> if not (Hashtbl.mem allowed_primitives (Path.last path, p.prim_name)) then refuse [ Path.last path ]
  (* Under any path: a signature or a functor may carry such a value of the library, but cannot rename it. *)
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

let check_uses structure =
  let open Typedtree in
  let default = Tast_iterator.default_iterator in
  let expr iterator e =
    (match e.exp_desc with
    | Texp_ident (path, _, value) -> check_value e.exp_env path value
    | Texp_letop { let_; ands; _ } ->
        List.iter (fun op -> check_value e.exp_env op.bop_op_path op.bop_op_val) (let_ :: ands)
    | Texp_object _ | Texp_new _ -> refuse [ "object" ]
    | _ -> ());
    default.expr iterator e
  in
  let module_expr iterator m =
    (match m.mod_desc with
    | Tmod_ident (path, _) -> check_module m.mod_env path
    | Tmod_apply (_, _, coercion) | Tmod_constraint (_, _, _, coercion) -> check_coercion coercion
    | _ -> ());
    default.module_expr iterator m
  in
  let module_type iterator m =
    (match m.mty_desc with
    | Tmty_alias (path, _) | Tmty_ident (Path.Pdot (path, _), _) -> check_module m.mty_env path
    | Tmty_with (_, changes) ->
        let change (_, _, change) =
          match change with Twith_module (path, _) | Twith_modsubst (path, _) -> check_module m.mty_env path | _ -> ()
        in
        List.iter change changes
    | _ -> ());
    default.module_type iterator m
  in
  let structure_item iterator item =
    (match item.str_desc with
    | Tstr_primitive _ -> refuse [ "external" ]
    | Tstr_class _ | Tstr_class_type _ -> refuse [ "class" ]
    | Tstr_recmodule _ -> refuse [ "module_rec" ]
    | _ -> ());
    default.structure_item iterator item
  in
  let signature_item iterator item =
    (match item.sig_desc with
    | Tsig_value { val_prim = _ :: _; _ } -> refuse [ "external" ]
    | Tsig_modsubst { ms_manifest; _ } -> check_module item.sig_env ms_manifest
    | Tsig_open { open_expr = path, _; _ } -> check_module item.sig_env path
    | Tsig_class _ | Tsig_class_type _ -> refuse [ "class" ]
    | Tsig_recmodule _ -> refuse [ "module_rec" ]
    | _ -> ());
    default.signature_item iterator item
  in
  let iterator = { default with expr; module_expr; module_type; structure_item; signature_item } in
  iterator.structure iterator structure

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
  | lambda -> Lambda.iter_head_constructor check_lambda lambda

(* {1 Running} *)

let execute ?(check = ignore) typed =
  let lambda = Translmod.transl_toplevel_definition typed in
  check lambda;
  let lambda = Simplif.simplify_lambda lambda in
  let init, functions = Bytegen.compile_phrase lambda in
  let code, relocations, events = Emitcode.to_memory init functions in
  Symtable.patch_object code relocations;
  Symtable.check_global_initialized relocations;
  Symtable.update_global_table ();
  let _, run = Meta.reify_bytecode code [| events |] None in
  ignore (run ())

(* The digest of a value that is made of data alone, and not too large. *)
let room = Bytes.create 65536

let digest value =
  let length = Marshal.to_buffer room 0 (Bytes.length room) value [ Marshal.No_sharing ] in
  Digest.to_hex (Digest.subbytes room 0 length)

let prepare () =
  Clflags.debug := false;
  ignore (Warnings.parse_options false "-a");
  Toploop.set_paths ();
  Topeval.init ();
  Toploop.initialize_toplevel_env ();
  (* What the standard library declares is read now, not in each process anew. *)
  let item name = "let _ = let open " ^ name ^ " in ()" in
  ignore (type_structure !Toploop.toplevel_env (parse (String.concat "\n" (List.map item modules))));
  list_primitives !Toploop.toplevel_env

let run env text =
  let typed, env = type_structure env (parse text) in
  execute typed;
  env

(* {1 Problems} *)

(* What is the same for all answers to a problem, made ready once: the types around it with its signature [Wanted], and a
   function from a module of that signature, and from what is done with each call, to the calls. *)
(* A process remembers so many: each takes some memory, of which an answer would have the less. *)
let most_problems = 256

type problem = { env : Env.t; calls : Obj.t -> (Obj.t -> unit) -> unit }

let problem prelude signature calls =
  let env = run !Toploop.toplevel_env (prelude ^ "\nmodule type Wanted = sig " ^ signature ^ " end") in
  let call text = "grove_call (fun () -> Stdlib.Obj.repr (" ^ text ^ "));" in
  let body = String.concat "\n" (List.map call calls) ^ " ()" in
  ignore (run env ("let grove_calls (module Grove : Wanted) grove_call = let open Grove in " ^ body));
  { env; calls = Obj.obj (Toploop.getvalue "grove_calls") }

let problems = Hashtbl.create most_problems

let remembered prelude signature calls =
  let key = (prelude, signature, calls) in
  match Hashtbl.find_opt problems key with
  | Some problem -> problem
  | None ->
      let problem = problem prelude signature calls in
      Hashtbl.add problems key problem;
      problem

(* {1 A request, in a process of its own} *)

type request = { cpu : float; wall : float; gate : bool; problem : problem; code : string }

(* [module Candidate : Wanted = struct ... end] *)
let sealed structure =
  let open Ast_helper in
  let name text = Location.mknoloc text in
  let wanted = Mty.ident (name (Longident.Lident "Wanted")) in
  [ Str.module_ (Mb.mk (name (Some "Candidate")) (Mod.constraint_ (Mod.structure structure) wanted)) ]

let name_at_run_time typed =
  match typed.Typedtree.str_items with
  | [ { str_desc = Tstr_module { mb_id = Some id; _ }; _ } ] -> Translmod.toplevel_name id
  | _ -> failwith "one module was sealed"

let serve { problem; code; gate; _ } say =
  let finish candidate =
    let report call = say (match digest ((Obj.obj call : unit -> Obj.t) ()) with digest -> digest | exception _ -> "-") in
    problem.calls candidate report
  in
  if code = "" then (say "0 ok"; finish (Obj.repr 0))
  else
    match parse code with
    | exception _ -> say "syntax no"
    | structure -> (
        match type_structure problem.env (sealed structure) with
        | exception _ -> say (string_of_int (max 1 (count_errors problem.env structure 10)) ^ " no")
        | typed, _ -> (
            say "0";
            let check lambda =
              if gate then check_lambda lambda;
              say "ok";
              Gc.set { (Gc.get ()) with space_overhead = 80 }
            in
            match
              if gate then check_uses typed;
              execute ~check typed
            with
            | exception Refused name -> say (String.map (fun c -> if c = ' ' then '_' else c) name)
            | () -> finish (Toploop.getvalue (name_at_run_time typed))))

(* Ends a process and all that it has started. The first process of a space of its own can reach all others. *)
let alone = Unix.getpid () = 1

let rec reap () =
  match Unix.waitpid [] (-1) with
  | _ -> reap ()
  | exception Unix.Unix_error (Unix.EINTR, _, _) -> reap ()
  | exception Unix.Unix_error _ -> ()

let finish child =
  let kill target = try Unix.kill target Sys.sigkill with Unix.Unix_error _ -> () in
  kill (-child);
  kill child;
  if alone then kill (-1);
  reap ()

(* What the process of a request says, until it ends or time is over. *)
let collect child source wall =
  let said = Buffer.create 512 in
  let bytes = Bytes.create 4096 in
  let deadline = Unix.gettimeofday () +. wall in
  let whole = ref false in
  let rec listen () =
    let left = deadline -. Unix.gettimeofday () in
    if left > 0. && Buffer.length said < 65536 then
      match Unix.select [ source ] [] [] left with
      | [], _, _ -> ()
      | _ -> (
          match Unix.read source bytes 0 (Bytes.length bytes) with
          | 0 -> ()
          | n ->
              Buffer.add_subbytes said bytes 0 n;
              whole := Bytes.contains (Bytes.sub bytes 0 n) '\n';
              if not !whole then listen ())
      | exception Unix.Unix_error (Unix.EINTR, _, _) -> listen ()
  in
  listen ();
  finish child;
  Unix.close source;
  String.map (fun c -> if c = '\n' then ' ' else c) (Buffer.contents said) ^ if !whole then "." else ""

let nowhere = Unix.openfile "/dev/null" [ Unix.O_RDWR ] 0

let answer request =
  let source, sink = Unix.pipe ~cloexec:true () in
  match Unix.fork () with
  | 0 ->
      ignore (Unix.setsid ());
      List.iter (Unix.dup2 nowhere) [ Unix.stdin; Unix.stdout; Unix.stderr ];
      Unix.close source;
      let timer = { Unix.it_interval = 0.; it_value = request.cpu } in
      ignore (Unix.setitimer Unix.ITIMER_PROF timer);
      let say word = ignore (Unix.write_substring sink (" " ^ word) 0 (String.length word + 1)) in
      (try serve request say with _ -> ());
      ignore (Unix.write_substring sink "\n" 0 1);
      Unix._exit 0
  | child ->
      Unix.close sink;
      collect child source request.wall

(* Answers requests until it remembers enough problems: whether there may be more requests. *)
let rec generation () =
  if Hashtbl.length problems >= most_problems then true
  else
    match input_line stdin with
    | exception End_of_file -> false
    | line -> (
        match String.split_on_char ' ' line with
        | id :: cpu :: wall :: gate :: lengths ->
            let texts = List.map (fun length -> really_input_string stdin (int_of_string length)) lengths in
            let prelude, signature, code, calls =
              match texts with a :: b :: c :: rest -> (a, b, c, rest) | _ -> failwith "request"
            in
            let said =
              match remembered prelude signature calls with
              | problem ->
                  answer { cpu = float_of_string cpu; wall = float_of_string wall; gate = gate = "gate"; problem; code }
              | exception _ -> ""
            in
            print_string (id ^ said ^ "\n");
            flush stdout;
            generation ()
        | _ -> failwith "request")

(* Problems are remembered by a child, which ends when they are enough, and the next begins without any. Requests come
   one at a time, so that nothing of the next has been read by then. *)
let rec generations () =
  match Unix.fork () with
  | 0 -> Unix._exit (if generation () then 0 else 3)
  | child ->
      let rec wait () =
        match Unix.wait () with
        | ended, status -> if ended = child then status else wait ()
        | exception Unix.Unix_error (Unix.EINTR, _, _) -> wait ()
      in
      if wait () = Unix.WEXITED 0 then generations ()

let () =
  prepare ();
  Gc.compact ();
  (* A process has to copy what it writes to, and marking what is in use writes to all of it. But a heap grows by so many
     hundredths of what is asked for, which must be far less than an answer may have. *)
  Gc.set { (Gc.get ()) with space_overhead = 1_000 };
  generations ()
